"""Random numbers of a test are the same alone or among others; a variable changes them."""

from __future__ import annotations

import json
import re

from nested import run_tests
from seeds import VARIABLE, Seeds

SOURCE = """
import json, random
import hypothesis, numpy, pytest, torch

def draw():
    return [random.random(), float(numpy.random.random()), float(torch.rand(()))]

def tell(test, *drawn):
    print("drawn", json.dumps([test, *drawn]))

AT_IMPORT = draw()

@pytest.fixture(scope="module")
def shared():
    return draw()

def test_first(shared):
    tell("first", AT_IMPORT, shared, draw())

@pytest.mark.parametrize("number", [1, 2])
def test_second(shared, number):
    tell(f"second {number}", AT_IMPORT, shared, draw())

@hypothesis.given(hypothesis.strategies.sampled_from([0, 1]))
@hypothesis.settings(max_examples=5, database=None)
def test_examples(number):
    tell(f"example {number}", float(torch.rand(())))

def test_failing():
    assert False
"""


def drawn_by(folder, chosen=""):
    """What each test drew, by its name, and the output."""
    _, output = run_tests(folder, SOURCE, Seeds(), chosen)
    drawn = [json.loads(line) for line in re.findall(r"drawn (.*)", output)]
    return {test: numbers for test, *numbers in drawn}, output


def test_alone_or_among_others(tmp_path):
    every, _ = drawn_by(tmp_path)
    assert set(every) == {"first", "second 1", "second 2", "example 0", "example 1"}
    for test, chosen in {
        "second 2": "::test_second[2]",
        "first": "::test_first",
        "example 1": "::test_examples",
    }.items():
        alone, _ = drawn_by(tmp_path, chosen)
        assert alone[test] == every[test]


def test_each_has_its_own(tmp_path):
    every, _ = drawn_by(tmp_path)
    numbers = [every[test][2] for test in ("first", "second 1", "second 2")]
    numbers += every["first"][:2]
    for of_generator in zip(*numbers, strict=True):
        assert len(set(of_generator)) == len(numbers)


def test_a_variable_changes_them(tmp_path, monkeypatch):
    first, _ = drawn_by(tmp_path)
    monkeypatch.setenv(VARIABLE, "1")
    second, output = drawn_by(tmp_path)
    for test, numbers in first.items():
        assert all(a != b for a, b in zip(numbers, second[test], strict=True)), test
    assert f"{VARIABLE}=1 python -m pytest 'test_nested.py::test_failing'" in output
    assert output.count(VARIABLE) == 1


def test_this_suite_is_seeded(request):
    assert isinstance(request.config.pluginmanager.getplugin("diglot-seeds"), Seeds)
