"""The text of the demo model: facts with questions, answers and key words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

TEXT_FOLDER = Path(__file__).parent / "demo_text"
MODEL_FOLDER = Path(__file__).parent / "demo"
HELD_OUT_FILE = "held_out.yaml"
NOT_FACTS = {HELD_OUT_FILE, "wording.yaml"}


@dataclass(frozen=True)
class Fact:
    """One answer, the questions that ask for it, and the key words a right answer contains."""

    id: str
    ask: tuple[str, ...]
    answer: str
    keys: tuple[str, ...]
    about: tuple[str, ...] = ()
    small_talk: bool = False


@dataclass(frozen=True)
class Question:
    """A question as a user puts it, with the key words its answer must contain."""

    text: str
    keys: tuple[str, ...]


def load_facts(folder: Path = TEXT_FOLDER) -> tuple[Fact, ...]:
    """All facts in `folder`, in the order of file name and place."""
    files = sorted(path for path in folder.glob("*.yaml") if path.name not in NOT_FACTS)
    entries = [
        (path.stem, entry) for path in files for entry in yaml.safe_load(path.read_text("utf-8"))
    ]
    return tuple(
        Fact(
            id=entry["id"],
            ask=tuple(entry["ask"]),
            answer=entry["answer"],
            keys=tuple(entry["keys"]),
            about=tuple(entry.get("about", ())),
            small_talk=stem == "small_talk",
        )
        for stem, entry in entries
    )


def load_held_out(folder: Path = TEXT_FOLDER) -> tuple[Question, ...]:
    """The paraphrases that training never sees."""
    keys = {fact.id: fact.keys for fact in load_facts(folder)}
    entries = yaml.safe_load((folder / HELD_OUT_FILE).read_text("utf-8"))
    return tuple(Question(entry["ask"], keys[entry["fact"]]) for entry in entries)


def known_questions(count: int, folder: Path = TEXT_FOLDER) -> tuple[Question, ...]:
    """`count` training questions, spread evenly over the facts, with changing phrasings."""
    facts = load_facts(folder)
    chosen = [facts[number * len(facts) // count] for number in range(count)]
    return tuple(
        Question(fact.ask[number % len(fact.ask)], fact.keys) for number, fact in enumerate(chosen)
    )


def normal_form(text: str) -> str:
    """`text` in lower case without punctuation: two questions with equal form count as the same."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def is_answered(answer: str, keys: tuple[str, ...]) -> bool:
    """Whether `answer` contains every key word, in any case."""
    return all(key.lower() in answer.lower() for key in keys)
