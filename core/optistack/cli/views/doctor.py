"""What the doctor found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from optistack.cli.views.common import Entries, heading
from optistack.doctor import Checkup


def doctor_view(checkups: Sequence[Checkup], *, wide: bool) -> Iterator[RenderableType]:
    wrong = sum(not checkup.ok for checkup in checkups)
    yield heading("This machine", f"{wrong} of {len(checkups)} to mend" if wrong else "nothing to mend")
    entries = Entries(wide=wide)
    for checkup in checkups:
        mark = Text("ok", "green") if checkup.ok else Text("mend", "bold red")
        mend = [Text(checkup.mend, "cyan")] if checkup.mend else []
        entries.add([mark, Text(checkup.name, "bold")], [Text(checkup.says), *mend])
    yield from entries.render()
