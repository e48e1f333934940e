# SPDX-License-Identifier: Apache-2.0
"""What came out, as JSON to go on from and as Markdown for RESULTS.md. Written after every item."""

import datetime
import json
import pathlib


class Report:
    def __init__(self, folders: list[pathlib.Path], simulated: bool):
        """The first folder is where an earlier run's results are taken from; all of them get the new ones."""
        self._folders = folders
        self.data: dict = {"simulated": simulated, "machine": {}, "items": {}}
        earlier = folders[0] / "results.json"
        if earlier.exists():
            data = json.loads(earlier.read_text())
            if data.get("simulated") == simulated:
                self.data = data

    def set_machine(self, facts: dict[str, str]) -> None:
        if self.data["machine"].get("commit") not in (None, facts["commit"]):
            self.data["items"] = {}  # results of other programs
        self.data["machine"] = facts

    def passed(self, name: str) -> bool:
        return self.data["items"].get(name, {}).get("status") == "passed"

    def add(self, name: str, title: str, status: str, seconds: float, figures: dict, problem: str = "") -> None:
        self.data["items"][name] = {"title": title, "status": status, "seconds": round(seconds, 1), "figures": figures,
                                    "problem": problem,
                                    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}
        self.write()

    def write(self) -> None:
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "results.json").write_text(json.dumps(self.data, indent=1))
            (folder / "results.md").write_text(self.markdown())

    def markdown(self) -> str:
        lines = ["| machine | |", "|---|---|"]
        lines += [f"| {name} | {_cell(value)} |" for name, value in self.data["machine"].items()]
        lines += ["", "| item | result | seconds | what was seen |", "|---|---|---|---|"]
        for name, entry in self.data["items"].items():
            seen = entry["problem"] or "; ".join(f"{key}: {value}" for key, value in entry["figures"].items())
            lines.append(f"| `{name}`: {_cell(entry['title'])} | {entry['status']} | {entry['seconds']} | {_cell(seen)} |")
        return "\n".join(lines) + "\n"

    def table(self) -> str:
        return "\n".join(f"{entry['status']:8} {entry['seconds']:6.1f} s  {name:15} {entry['problem'][:200] or entry['title']}"
                         for name, entry in self.data["items"].items())


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")[:900]
