// The part of Python's stable ABI (3.10 and later) that diglot uses. It is declared here because a
// system's Python often comes without its C headers, and nothing else in the build needs Python.h.
// Names, signatures and layouts are frozen (PEP 384, and "C API Stability" in Python's
// documentation); macros of Python.h are functions here.
#pragma once

#include <sys/types.h>

extern "C" {

using Py_ssize_t = ssize_t;

struct PyTypeObject;
struct PyThreadState;
struct PyObject {
  Py_ssize_t ob_refcnt;
  PyTypeObject* ob_type;
};

using PyCFunction = PyObject* (*)(PyObject*, PyObject*);
struct PyMethodDef {
  const char* ml_name;
  PyCFunction ml_meth;
  int ml_flags;
  const char* ml_doc;
};
struct PyModuleDef_Base {
  PyObject ob_base;
  PyObject* (*m_init)();
  Py_ssize_t m_index;
  PyObject* m_copy;
};
struct PyModuleDef {
  PyModuleDef_Base m_base;
  const char* m_name;
  const char* m_doc;
  Py_ssize_t m_size;
  PyMethodDef* m_methods;
  void* m_slots;
  int (*m_traverse)(PyObject*, int (*)(PyObject*, void*), void*);
  int (*m_clear)(PyObject*);
  void (*m_free)(void*);
};

extern PyObject _Py_NoneStruct;
extern PyObject _Py_TrueStruct;
extern PyTypeObject PyBool_Type;
extern PyTypeObject PyDict_Type;
extern PyTypeObject PyFloat_Type;
extern PyTypeObject PyList_Type;
extern PyTypeObject PyLong_Type;
extern PyTypeObject PyTuple_Type;
extern PyTypeObject PyUnicode_Type;
extern PyObject* PyExc_KeyboardInterrupt;
extern PyObject* PyExc_LookupError;
extern PyObject* PyExc_OSError;
extern PyObject* PyExc_RuntimeError;
extern PyObject* PyExc_TypeError;
extern PyObject* PyExc_ValueError;

int PyArg_ParseTuple(PyObject*, const char*, ...);
PyObject* Py_BuildValue(const char*, ...);
int Py_IsInitialized();
void Py_DecRef(PyObject*);
void Py_IncRef(PyObject*);
PyObject* PyBool_FromLong(long);
int PyBytes_AsStringAndSize(PyObject*, char**, Py_ssize_t*);
PyObject* PyBytes_FromStringAndSize(const char*, Py_ssize_t);
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
int PyErr_CheckSignals();
void PyErr_Clear();
int PyErr_ExceptionMatches(PyObject*);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyErr_Occurred();
void PyErr_SetInterrupt();
void PyErr_SetObject(PyObject*, PyObject*);
void PyErr_SetString(PyObject*, const char*);
void PyErr_WriteUnraisable(PyObject*);
void PyEval_RestoreThread(PyThreadState*);
PyThreadState* PyEval_SaveThread();
double PyFloat_AsDouble(PyObject*);
PyObject* PyDict_New();
int PyDict_Next(PyObject*, Py_ssize_t*, PyObject**, PyObject**);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
Py_ssize_t PyDict_Size(PyObject*);
int PyGILState_Ensure();  // an enumeration's value
void PyGILState_Release(int);
PyObject* PyImport_ImportModule(const char*);
int PyList_Append(PyObject*, PyObject*);
PyObject* PyList_AsTuple(PyObject*);
PyObject* PyList_GetItem(PyObject*, Py_ssize_t);
PyObject* PyList_New(Py_ssize_t);
Py_ssize_t PyList_Size(PyObject*);
double PyLong_AsDouble(PyObject*);
long PyLong_AsLong(PyObject*);
long long PyLong_AsLongLong(PyObject*);
unsigned long long PyLong_AsUnsignedLongLongMask(PyObject*);
PyObject* PyLong_FromLong(long);
PyObject* PyLong_FromVoidPtr(void*);
int PyModule_AddObjectRef(PyObject*, const char*, PyObject*);
int PyModule_AddIntConstant(PyObject*, const char*, long);
int PyModule_AddStringConstant(PyObject*, const char*, const char*);
PyObject* PyModule_Create2(PyModuleDef*, int);
PyObject* PyObject_CallMethodObjArgs(PyObject*, PyObject*, ...);
PyObject* PyObject_CallNoArgs(PyObject*);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyObject_GetItem(PyObject*, PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
PyObject* PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);
Py_ssize_t PyTuple_Size(PyObject*);
unsigned long PyType_GetFlags(PyTypeObject*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);
PyObject* PyUnicode_FromString(const char*);
PyObject* PyUnicode_InternFromString(const char*);

}  // extern "C"

constexpr int METH_VARARGS = 0x1;
constexpr int METH_NOARGS = 0x4;
constexpr int METH_O = 0x8;
constexpr int METH_FASTCALL = 0x80;

#define Py_None (&_Py_NoneStruct)
#define Py_True (&_Py_TrueStruct)
#define Py_RETURN_NONE return (Py_IncRef(Py_None), Py_None)
#define PyMODINIT_FUNC extern "C" __attribute__((visibility("default"))) PyObject*
#define PyModuleDef_HEAD_INIT {{1, nullptr}, nullptr, 0, nullptr}

inline void Py_DECREF(PyObject* object) { Py_DecRef(object); }
inline void Py_XDECREF(PyObject* object) { Py_DecRef(object); }  // which takes a null pointer

inline bool PyLong_Check(PyObject* object) {
  constexpr unsigned long kIsLong = 1UL << 24;  // Py_TPFLAGS_LONG_SUBCLASS
  return (PyType_GetFlags(object->ob_type) & kIsLong) != 0;
}

inline PyObject* PyModule_Create(PyModuleDef* module) {
  return PyModule_Create2(module, 3);  // PYTHON_ABI_VERSION
}
