"""Stand-ins for classes of transformers, and a model with every kind of module that is replaced.

diglot.patch finds reviewed classes by their full names alone, so that these need no transformers.
"""

from __future__ import annotations

import math

import torch
from torch import nn


def stand_in(module, kind):
    """Gives a class the name of one of transformers."""
    kind.__module__, kind.__qualname__ = f"transformers.{module}", kind.__name__
    return kind


class LlamaRMSNorm(nn.Module):
    def __init__(self, size=8, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon = eps

    def forward(self, x):
        wide = x.float()
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * y.to(x.dtype)


class GemmaRMSNorm(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(size)), 1e-6

    def forward(self, x):
        wide = x.float()
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (y * (1 + self.weight.float())).type_as(x)


class T5LayerNorm(LlamaRMSNorm):
    def forward(self, x):
        y = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.variance_epsilon)
        is_half = self.weight.dtype in (torch.float16, torch.bfloat16)
        return self.weight * (y.to(self.weight.dtype) if is_half else y)


class CohereLayerNorm(LlamaRMSNorm):
    def forward(self, x):
        wide = x.float()
        y = nn.functional.layer_norm(wide, wide.shape[-1:], None, None, self.variance_epsilon)
        return (self.weight.float() * y).to(x.dtype)


class NewGELUActivation(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class QuickGELUActivation(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


LLAMA = "models.llama.modeling_llama"
stand_in(LLAMA, LlamaRMSNorm)
stand_in("models.gemma.modeling_gemma", GemmaRMSNorm)
stand_in("models.t5.modeling_t5", T5LayerNorm)
stand_in("models.cohere.modeling_cohere", CohereLayerNorm)
stand_in("activations", NewGELUActivation)
stand_in("activations", QuickGELUActivation)
NORMS = [LlamaRMSNorm, GemmaRMSNorm, T5LayerNorm, CohereLayerNorm]


class Block(nn.Module):
    """Every kind of module that is replaced, and functions beside them."""

    def __init__(self, rate=0.0):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.rms = nn.RMSNorm(8, eps=1e-5)
        self.llama = LlamaRMSNorm()
        self.gemma = GemmaRMSNorm()
        self.act = nn.GELU()
        self.new_act = NewGELUActivation()
        self.dropout = nn.Dropout(rate)
        self.softmax = nn.Softmax(-1)
        self.log_softmax = nn.LogSoftmax(-1)

    def forward(self, x):
        x = self.dropout(self.act(self.norm(self.linear(x))))
        x = self.gemma(self.new_act(self.llama(self.rms(x))))
        return self.log_softmax(self.softmax(x) + x)
