"""What a watch over places sees, by the CUDA library and in Python."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from diglot.graphs.watch import Place, attribute, library, watch, watch_in_python

NATIVE = pytest.mark.skipif(library() is None, reason="there is no library that watches")


@pytest.fixture(params=[pytest.param(watch, marks=NATIVE), watch_in_python], ids=["native", "py"])
def make(request):
    return request.param


def places_of(owner):
    keys = owner if isinstance(owner, dict) else range(len(owner))
    return [Place(str(key), owner, key) for key in keys]


def replace(owner, key):
    owner[key] = torch.ones(2, 3)


def move(owner, key):
    owner[key].data = torch.ones(2, 3)


def transpose(owner, key):
    owner[key].t_()


def narrow(owner, key):
    owner[key].data = owner[key].data[:1]


def flatten(owner, key):
    owner[key].data = owner[key].data.view(6)


def remove(owner, key):
    owner.pop(key)


@pytest.mark.parametrize("change", [replace, move, transpose, narrow, flatten, remove])
@pytest.mark.parametrize("kind", [dict, list])
def test_a_tensor(make, kind, change):
    tensors = [torch.zeros(2, 3), nn.Parameter(torch.zeros(2, 3)).requires_grad_(False)]
    owner = dict(enumerate(tensors)) if kind is dict else tensors
    first_changed = make([Place("scalar", {"": torch.ones(())}, ""), *places_of(owner)])
    owner[0].add_(1), owner[1].add_(1)  # what they hold may change
    assert first_changed() == -1
    change(owner, 1)
    assert first_changed() == 2
    assert first_changed() == 2  # no error is left


@pytest.mark.parametrize("with_gradients", [True, False])
def test_gradients(make, with_gradients):
    tensors = [torch.zeros(2), nn.Parameter(torch.zeros(2)), torch.zeros(2, requires_grad=True)]
    first_changed = make(places_of(tensors), with_gradients=with_gradients)
    for i, tensor in enumerate(tensors):
        assert first_changed() == -1
        tensor.requires_grad_(not tensor.requires_grad)
        assert first_changed() == (i if with_gradients else -1)
        tensor.requires_grad_(not tensor.requires_grad)


def test_gradients_of_many(make):
    """Within as many calls as it takes to ask all, and from then on in each."""
    tensors = [nn.Parameter(torch.zeros(2)) for _ in range(20)]
    first_changed = make(places_of(tensors), with_gradients=True)
    assert [first_changed() for _ in range(4)] == [-1] * 4
    tensors[17].requires_grad_(False)
    found = [first_changed() for _ in range(6)]
    assert found[2:] == [17] * 4 and set(found) <= {-1, 17}


def test_other_objects(make):
    """Modes and numbers: only which object it is counts."""
    module = nn.Linear(2, 2)
    group = {"lr": 0.1, "shape": torch.zeros(2)}
    first_changed = make(
        [Place("weight", module._parameters, "weight")],
        [attribute("", module, "training"), *places_of(group)],
    )
    assert first_changed() == -1
    group["shape"].data = torch.ones(3)
    assert first_changed() == -1
    group["lr"] = 0.2
    assert first_changed() == 2
    module.eval()
    assert first_changed() == 1
    del module._parameters["weight"]
    assert first_changed() == 0


def test_an_attribute_that_is_gone(make):
    class Slotted:
        __slots__ = ("mode",)

    slotted = Slotted()
    slotted.mode = True
    first_changed = make([], [attribute("mode", slotted, "mode")])
    assert first_changed() == -1
    del slotted.mode
    assert first_changed() == 0


def test_errors_of_owners(make):
    class Broken:
        def __getitem__(self, key):
            if self.works:
                return 1
            raise ZeroDivisionError

    broken = Broken()
    broken.works = True
    first_changed = make([], [Place("", broken, "")])
    assert first_changed() == -1
    broken.works = False
    with pytest.raises(ZeroDivisionError):
        first_changed()


def test_tensors_live_as_long(make):
    """A model that holds its own watch can go."""
    model = nn.Linear(2, 2)
    first_changed = make(places_of(model._parameters), [attribute("", model, "training")])
    weight, held = model.weight.data.fill_(3), weakref.ref(model)
    model.first_changed = first_changed
    del model.weight
    assert first_changed() == 0
    assert weight.eq(3).all()
    del model, first_changed
    gc.collect()
    assert held() is None


@NATIVE
def test_a_watch_that_fails_keeps_no_tensor():
    tensor = torch.zeros(2)
    held = tensor._use_count()
    address = torch.ops.diglot_cuda.watch([tensor])
    assert tensor._use_count() > held
    with pytest.raises(SystemError):
        library().own_watch(address, "no tuple", False)
    assert tensor._use_count() == held


@NATIVE
def test_subclasses_are_watched_in_python(monkeypatch):
    """The library's operator would be given what a subclass makes of it."""

    class Marked(torch.Tensor):
        pass

    monkeypatch.setattr(library(), "own_watch", None)
    owner = [torch.ones(2).as_subclass(Marked)]
    first_changed = watch(places_of(owner))
    assert first_changed() == -1
    replace(owner, 0)
    assert first_changed() == 0
