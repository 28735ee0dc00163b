"""Ngram, a speculative algorithm for warcore."""

from warcore_spec_ngram.algorithm import Ngram

__all__ = ["Ngram"]
