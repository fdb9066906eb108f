"""How a sampler is called, in numpy or torch, and what it may give back.

A sampler is any callable `(p, q, drafted, generator) -> (accepted, tokens)`:

    p [B, m, V], q [B, m + 1, V], drafted [B, m]: rows and drafts of B rounds of their own;
    accepted [B]: how many drafts are kept;
    tokens [B, m + 1]: those drafts, then the recovery or bonus token, then −1.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.audit.hostile import Blocks
from sim.checks import shorten, unknown_name
from sim.rounds.blocks import NO_TOKEN
from theory import to_numpy

__all__ = ["BACKENDS", "Backend", "Fault", "Returned", "call"]

BACKENDS = ("numpy", "torch")
DTYPES = ("float32", "float64")
ZEROS = 400

Sampler = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Fault:
    """Something that no right sampler does: first in which row, what was seen, in how many rows."""

    kind: str
    text: str
    row: int | None = None
    count: int = 1


@dataclass(frozen=True)
class Returned:
    """What a batch gave back: accepted [B], the token behind them [B], and which rows are sound."""

    accepted: np.ndarray
    token: np.ndarray
    sound: np.ndarray
    faults: tuple[Fault, ...] = ()


class Backend:
    """The library, precision and device in which a sampler is handed its rows."""

    def __init__(self, name: str, dtype: str, device: str, blocks: Blocks) -> None:
        for what, value, known in (("backend", name, BACKENDS), ("dtype", dtype, DTYPES)):
            if value not in known:
                raise unknown_name(what, str(value), known)
        if name == "numpy" and device != "cpu":
            raise ValueError(f"numpy's rows are on the cpu; device {device!r} needs torch")
        self._torch = _torch() if name == "torch" else None
        self._device = device
        self.blocks = blocks.rounded(dtype)
        try:
            self._p, self._q = self._array(self.blocks.p), self._array(self.blocks.q)
        except (RuntimeError, AssertionError) as error:  # torch's, of a device that is not there
            raise ValueError(f"device {device!r}: {str(error).splitlines()[0]}") from None

    def generator(self, seed: np.random.SeedSequence) -> Any:
        """The generator that the sampler draws from in the whole audit."""
        if self._torch is None:
            return np.random.default_rng(seed)
        generator = self._torch.Generator(self._device)
        generator.manual_seed(int(seed.generate_state(1, np.uint32)[0]))
        return generator

    def zeros_first(self) -> Any | None:
        """A generator whose first uniform numbers are 0, a value of [0, 1); None in torch.

        The first 400 words of its Mersenne twister are 0: at least 200 numbers. Others follow, for
        which a sampler that draws again at 0 does not wait for ever.
        """
        if self._torch is not None:
            return None
        key = np.random.default_rng(0).integers(2**32, size=624, dtype=np.uint32)
        key[:ZEROS] = 0
        bits = np.random.MT19937()
        bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 0}}
        return np.random.Generator(bits)

    def arguments(self, block: np.ndarray, drafts: np.ndarray) -> tuple[Any, Any, Any]:
        """p, q and drafted of a batch: copies, which a sampler may change."""
        index = self._array(block)
        return self._p[index], self._q[index], self._array(drafts.copy())

    def _array(self, values: np.ndarray) -> Any:
        if self._torch is None:
            return values
        return self._torch.as_tensor(values, device=self._device)


def _torch() -> Any:
    """torch, which is loaded only where rows are asked for as its tensors."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ValueError("backend 'torch' needs torch, which is not installed") from None


def call(
    sampler: Sampler, backend: Backend, generator: Any, block: np.ndarray, drafts: np.ndarray
) -> Returned:
    """Run a sampler on a batch; its mistakes come back as faults, its exceptions too."""
    try:
        given = _answer(sampler, backend, generator, block, drafts)
    except (Exception, SystemExit) as error:
        return _nothing(len(block), _raised(sampler, backend, generator, block, drafts, error))
    try:
        accepted, tokens = _integers(given, drafts.shape)
    except ValueError as error:
        return _nothing(len(block), Fault("malformed", str(error), count=len(block)))
    return _checked(accepted, tokens, drafts, backend.blocks.shape[2])


def _answer(
    sampler: Sampler, backend: Backend, generator: Any, block: np.ndarray, drafts: np.ndarray
) -> Any:
    with np.errstate():  # what a sampler sets there is its own affair
        return sampler(*backend.arguments(block, drafts), generator)


def _nothing(count: int, fault: Fault) -> Returned:
    empty = np.zeros(count, dtype=np.int64)
    return Returned(empty, empty, np.zeros(count, dtype=bool), (fault,))


def _raised(
    sampler: Sampler,
    backend: Backend,
    generator: Any,
    block: np.ndarray,
    drafts: np.ndarray,
    error: BaseException,
) -> Fault:
    """The exception, and the first row that raises one by itself."""
    for row in range(len(block)):
        try:
            _answer(sampler, backend, generator, block[row : row + 1], drafts[row : row + 1])
        except (Exception, SystemExit) as alone:
            return Fault("raised", _told(alone), row)
    return Fault(
        "raised", f"{_told(error)} (in a batch of {len(block)}; in none of its rows alone)"
    )


def _told(error: BaseException) -> str:
    return shorten(" ".join(f"{type(error).__name__}: {error}".split()), 300)


def _integers(given: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """accepted [B] and tokens [B, m + 1] as int64. ValueError says what was returned instead."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(f"(accepted, tokens) is wanted, got {shorten(repr(type(given).__name__))}")
    found = []
    batch, drafts = shape
    for name, value, wanted in zip(("accepted", "tokens"), given, ((batch,), (batch, drafts + 1))):
        try:
            array = to_numpy(value) if hasattr(value, "shape") else np.asanyarray(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} is no array: {error}") from None
        if array.shape != wanted:
            raise ValueError(f"{name} must have shape {wanted}, got {array.shape}")
        if isinstance(array, np.ma.MaskedArray):
            raise ValueError(f"{name} must be a plain array, got a masked one")
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} must be integers, got {array.dtype}")
        found.append(array.astype(np.int64))
    return found[0], found[1]


def _checked(accepted: np.ndarray, tokens: np.ndarray, drafts: np.ndarray, vocab: int) -> Returned:
    """The first row of each kind of mistake becomes a fault.

    No row with one is counted on, unless it is what stands behind the round's token.
    """
    most, rows = drafts.shape[1], np.arange(len(drafts))
    place = np.arange(most + 1)
    counted = (accepted >= 0) & (accepted <= most)
    kept = np.clip(accepted, 0, most)
    token = tokens[rows, kept]
    altered = np.any((tokens[:, :-1] != drafts) & (place[:-1] < kept[:, None]), axis=-1)
    beyond = np.any((tokens != NO_TOKEN) & (place > kept[:, None]), axis=-1)
    wrong = {
        "count": (~counted, lambda r: f"{accepted[r]} of {most} drafts are said to be accepted"),
        "draft": (counted & altered,
                  lambda r: f"{kept[r]} drafts are said to be accepted, but {tokens[r].tolist()} "
                  f"does not begin with them; drafted were {drafts[r].tolist()}"),
        "token": (counted & ((token < 0) | (token >= vocab)),
                  lambda r: f"token {token[r]} behind {kept[r]} accepted drafts is not in "
                  f"0 … {vocab - 1}"),
        "padding": (counted & beyond,
                    lambda r: f"{tokens[r].tolist()} goes on behind {kept[r]} accepted drafts and "
                    "one token; −1 is wanted there"),
    }  # fmt: skip
    faults, sound = [], np.ones(len(drafts), dtype=bool)
    for kind, (mask, text) in wrong.items():
        if kind != "padding":
            sound &= ~mask
        if mask.any():
            row = int(np.argmax(mask))
            faults.append(Fault(kind, text(row), row, int(mask.sum())))
    return Returned(kept, token, sound, tuple(faults))
