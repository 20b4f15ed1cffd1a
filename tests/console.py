"""Commands in documents: what stands in their ```console blocks after `$ `, and what they say that it prints."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROMPT = "$ "
#: What differs from run to run, and how it is recognised. Of generated names the alphabet is Kubernetes' own (v1.37
#: apimachinery/pkg/util/rand).
_VARIABLE = {
    r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": r"(GPU|MIG)-[0-9a-f-]{36}",
    r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b": r"-[bcdfghjklmnpqrstvwxz2456789]{5}",
    # Which one there is depends on the machine's cgroups.
    r"\b(cgroup|cooperative)\b": r"(cgroup|cooperative)",
    r"\bgpu-[0-7]\b": r"gpu-[0-7]",
    # The number of a MIG device on its GPU depends on which others there are.
    r"\bDevice +[0-9]:": r"Device +[0-9]:",
    # What a document leaves out.
    "…": r".*?",
    r" +": r" +",
}
_ANY = re.compile("|".join(f"({pattern})" for pattern in _VARIABLE))


@dataclass(frozen=True)
class Command:
    """One command of a document.

    Attributes:
        text: as it stands there, without the prompt; several lines where it goes on.
        shown: the lines that it prints, as far as they are shown.
    """

    text: str
    shown: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The words of its first line, up to a comment."""
        return self.text.partition(" #")[0].split()

    def prints(self, output: str) -> bool:
        """Tell whether an output is what is shown, if anything is; `…` stands for anything, on its own for lines."""
        lines = [re.sub(r" +", " ", line.rstrip()) for line in output.splitlines()]
        wanted = "".join(_pattern(line) for line in self.shown)
        return not self.shown or re.fullmatch(wanted, "".join(f"{line}\n" for line in lines)) is not None


def commands(document: Path, section: str = "") -> list[Command]:
    """Return the commands of a document, or of one section of it, in their order."""
    text = document.read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found: list[Command] = []
    for block in _BLOCK.findall(text):
        for line in block.splitlines():
            if line.startswith(_PROMPT):
                found.append(Command(line.removeprefix(_PROMPT)))
            elif found and found[-1].text.endswith("\\"):
                found[-1] = Command(f"{found[-1].text}\n{line}")
            elif found:
                found[-1] = Command(found[-1].text, (*found[-1].shown, line))
    return found


def _pattern(line: str) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*"
    parts, position = [], 0
    for match in _ANY.finditer(line.rstrip()):
        parts += [re.escape(line[position : match.start()]), _stands_for(match[0])]
        position = match.end()
    return "".join([*parts, re.escape(line.rstrip()[position:]), r"\n"])


def _stands_for(text: str) -> str:
    return next(wanted for pattern, wanted in _VARIABLE.items() if re.fullmatch(pattern, text))
