"""The files on which an op's times depend."""

import shutil

import pytest

from diglot.reference.specs import all_op_names
from diglot.tools import op_sources


def names(language, op):
    return {path.name for path in op_sources.files_of(language, op)}


@pytest.mark.parametrize("language", ["cuda", "triton"])
@pytest.mark.parametrize("op", all_op_names())
def test_every_op_has_files(op, language):
    assert f"{op}.{'cu' if language == 'cuda' else 'py'}" in names(language, op)


@pytest.mark.parametrize("language", ["cuda", "triton"])
def test_a_hash_has_12_digits(language):
    assert len(op_sources.sources_hash(language, "gelu")) == 12


def test_files_that_are_used():
    """Through files that are used themselves, and no others."""
    assert {"gelu_half.cuh", "elementwise.h"} <= names("cuda", "gelu")
    assert {"gelu_half.py", "elementwise.py"} <= names("triton", "gelu")
    assert not {"rows.h", "softmax.cu"} & names("cuda", "gelu")
    assert not {"rows.py", "softmax.py"} & names("triton", "gelu")


def test_kernels_of_another_op():
    """The gradient of a fused norm is the norm's own, in both languages."""
    assert op_sources.ops_of("add_layer_norm") == ["add_layer_norm", "layer_norm"]
    assert {"layer_norm.cu", "backward_resident.cuh"} <= names("cuda", "add_layer_norm")


def test_kernels_for_one_architecture():
    """Those of the op, and those that all of its kind use."""
    product = {"tensor_cores.cuh", "padded_copy.cu", "wide_matmul.cu"}
    assert product <= names("cuda", "matmul") and product <= names("cuda", "addmm")
    assert "scaled.cuh" in names("cuda", "scaled_mm")
    assert not {"scaled.cuh", "grouped_tensor_cores.cuh"} & names("cuda", "matmul")
    assert not product & names("cuda", "gelu")


def test_families():
    assert op_sources.families_of("gelu") == {"elementwise"}
    assert {"rows", "norm_forward", "norm_backward"} <= op_sources.families_of("rms_norm")
    assert "norm_backward" not in op_sources.families_of("softmax")


def test_a_hash_is_of_what_is_used(tmp_path, monkeypatch):
    """It follows a file that is used, and neither another nor the place of them all."""
    tree = op_sources.folder_of("triton")
    copy = shutil.copytree(tree, tmp_path / "triton_ops")
    before = op_sources.sources_hash("triton", "gelu")
    monkeypatch.setattr(op_sources, "folder_of", lambda _: copy)
    hashed = op_sources.sources_hash.__wrapped__
    assert hashed("triton", "gelu") == before
    (copy / "softmax.py").write_text("")
    assert hashed("triton", "gelu") == before
    (copy / "lib/gelu_half.py").open("a").write("# more\n")
    assert hashed("triton", "gelu") == before
    (copy / "lib/gelu_half.py").open("a").write("MORE = 1\n")
    assert hashed("triton", "gelu") != before


def test_no_op_has_no_hashes():
    assert set(op_sources.hashes_of("gelu")) == {"cuda", "triton"}
    assert op_sources.hashes_of("stream_map") == {}


def test_what_readers_alone_read_is_no_code():
    text = '// a "text\nint a; /* two\nlines */ int b;  // c\n\nf("//", \'"\', "\\"/*");\n'
    assert op_sources.code_of_cuda(text) == 'int a;   int b;\nf("//", \'"\', "\\"/*");'
    text = '"""One."""\n\ndef f():\n    """Two\n    lines."""\n    # c\n    return "#", """t"""\n'
    assert op_sources.code_of_python(text) == 'def f():\n    return "#", """t"""'
