"""vLLM's files of tiles for mixtures of experts: names, contents, the nearest, plans."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from backends import DEVICE
from product_cases import integers

import diglot
from diglot.backends.moe_files import file_name, find_moe_file, read_moe_file
from diglot.reference.grouped_mm import grouped_mm_oracle

NAME = "E=64,N=1408,device_name=NVIDIA_H200.json"


def tile(m=16, n=64, k=64, group=1, warps=4, stages=3, **more):
    numbers = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group}
    return {**numbers, "num_warps": warps, "num_stages": stages, **more}


def written(folder, content, name=NAME):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_names(tmp_path):
    facts = [
        (8, 14336, "NVIDIA A100-SXM4-80GB", None, None),
        (64, 1408, "NVIDIA H200", "fp8_w8a8", None),
        (256, 128, "AMD Instinct MI300X", "fp8_w8a8", (128, 128)),
    ]
    for given in facts:
        file = read_moe_file(written(tmp_path, {"1": tile()}, file_name(*given)))
        assert (file.experts, file.width, file.dtype, file.block) == (*given[:2], *given[3:])
        assert file.device == given[2].replace(" ", "_")
    assert file_name(64, 1408, "NVIDIA H200 141GB HBM3e") == NAME
    assert file_name(*facts[2]) == (
        "E=256,N=128,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128,128].json"
    )


def test_versions_and_the_nearest(tmp_path):
    content = {"triton_version": "3.6.0", "1": tile(), "8": tile(m=32), "4": tile(m=64)}
    file = read_moe_file(written(tmp_path, content))
    assert file.triton == "3.6.0" and list(file.tiles) == [1, 8, 4]
    rows = [file.nearest(tokens)["BLOCK_SIZE_M"] for tokens in (1, 2, 3, 6, 7, 9000)]
    assert rows == [16, 16, 64, 32, 32, 32]  # 6 is as near to 8, which is first, as to 4
    old = read_moe_file(written(tmp_path, {"1": tile(waves_per_eu=2)}))
    assert old.triton is None and old.nearest(5) == tile()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "holds no object"),
        ({}, "has no tiles"),
        ({"triton_version": 3, "1": tile()}, "triton_version is 3"),
        ({"many": tile()}, "'many' is no number of tokens"),
        ({"0": tile()}, "'0' is no number of tokens"),
        ({"1": 3}, "1 holds no object"),
        ({"1": {**tile(), "num_warps": 0}}, "1: num_warps is 0"),
        ({"1": {**tile(), "BLOCK_SIZE_K": "64"}}, "1: BLOCK_SIZE_K is '64'"),
        ({"1": {"BLOCK_SIZE_M": 16}}, "1: BLOCK_SIZE_N is None"),
    ],
)
def test_a_wrong_file_gives_one_warning(tmp_path, content, reason):
    written(tmp_path, content)
    with pytest.warns(UserWarning, match="ignores tiles of experts") as caught:
        assert find_moe_file(tmp_path, 64, 1408, "NVIDIA H200") is None
    assert len(caught) == 1 and reason in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_moe_file(tmp_path, 64, 1408, "NVIDIA H200") is None


def test_a_missing_file_and_a_wrong_name(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_moe_file(tmp_path, 64, 1408, "NVIDIA H200") is None
    for name in ("tiles.json", "E=64,device_name=NVIDIA_H200.json", "E=x,N=1,device_name=A.json"):
        with pytest.raises(ValueError, match="its name is not like"):
            read_moe_file(written(tmp_path, {"1": tile()}, name))


def test_plans(tmp_path):
    """The tile of the file runs, where it is one of ours; another leaves the planner's."""
    content = {"16": tile(m=32, n=64, k=32, group=2, warps=4), "512": tile(k=256)}
    file = read_moe_file(written(tmp_path, content))
    a, b = (integers(*shape, dtype=torch.bfloat16) for shape in ((40, 16), (2, 16, 24)))
    ends = torch.tensor([10, 40], dtype=torch.int32, device=DEVICE)
    right = grouped_mm_oracle(a, b, ends).bfloat16()
    for tokens, expected in ((20, "tiles of 32x64"), (500, "tiles of 32x128")):
        with diglot.use_plans(file.plan(tokens)):
            result = diglot.grouped_mm(a, b, offs=ends, backend="triton")
        assert diglot.last_run().variant == f"descriptors, {expected}, exchanged"
        assert torch.equal(result, right)
    assert file.plan(500) == {}
