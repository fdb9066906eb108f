"""Files of saved responses: one JSON document, a list of them, JSON lines, or a folder of files."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from real_models.errors import UserError
from real_models.served.reading.checking import Repeated
from real_models.served.reading.forms import read_texts
from real_models.served.reading.texts import Fault, ServedText

__all__ = ["parse_json", "read_answer", "read_saved"]


def read_saved(paths: Sequence[Path], form: str = "auto") -> list[ServedText]:
    """The texts of all responses in files, and in the .json files of folders by name, in order.

    Raises UserError, one line with the file, the text's number, the position and the value, for
    what is no response of the form, and for a file that is cut.
    """
    texts: list[ServedText] = []
    for where, response in (found for path in paths for found in _responses(path)):
        try:
            texts += read_texts(response, form)
        except Fault as fault:
            at = "" if fault.position is None else f", position {fault.position}"
            raise UserError(f"{where}: text {len(texts)}{at}: {fault}") from None
    if not texts:
        raise UserError(f"{', '.join(map(str, paths))}: no response is there")
    return texts


def read_answer(path: Path) -> Any:
    """The answer that `client` kept in a file."""
    return next(_responses(path))[1]


def parse_json(data: bytes, where: str) -> Any:
    """A JSON document whose objects remember a key that is repeated; UserError if it is none."""
    try:
        return json.loads(data, object_pairs_hook=_object)
    except RecursionError:
        raise UserError(f"{where}: not JSON of this form (nested too deeply)") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON, or cut ({error})") from None


def _responses(path: Path) -> Iterator[tuple[str, Any]]:
    """Each response with the place where it stands."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}") from None
        if file.suffix == ".jsonl":
            for number, line in enumerate(data.split(b"\n"), start=1):
                if line.strip():
                    where = f"{file} line {number}"
                    yield where, _answered(parse_json(line, where))
            continue
        document = parse_json(data, str(file))
        for response in document if isinstance(document, list) else [document]:
            yield str(file), _answered(response)


def _answered(document: Any) -> Any:
    """The response, alone or beside its request, as `client` keeps it."""
    kept = isinstance(document, dict) and document.keys() == {"request", "response"}
    return document["response"] if kept else document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    names = [name for name, _ in pairs]
    repeated = Repeated(found)
    repeated.repeated = next(name for name in names if names.count(name) > 1)
    return repeated
