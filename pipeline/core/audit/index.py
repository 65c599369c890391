"""Kind and subject of the log's entries, kept in the process, so that an append reads only what was added since."""

from pathlib import Path

import msgspec


class _IndexedEntry(msgspec.Struct):
    kind: str
    subject: str


class LogIndex:
    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()
        self._inode = self._offset = 0

    def read(self, log: Path) -> None:
        """Take in what the file has beyond what was read before, or all of another file."""
        try:
            stream = log.open("rb")
        except FileNotFoundError:
            self.__init__()
            return
        with stream:
            state = log.stat()
            if state.st_ino != self._inode or state.st_size < self._offset:
                self.__init__()
                self._inode = state.st_ino
            stream.seek(self._offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                try:
                    entry = msgspec.json.decode(line, type=_IndexedEntry)
                except msgspec.DecodeError:
                    continue  # no entry: `verify` says so
                self.pairs.add((entry.kind, entry.subject))


_INDEXES: dict[Path, LogIndex] = {}


def index_of(log: Path) -> LogIndex:
    """The index of the file as it is now. Call it alone with the log."""
    index = _INDEXES.setdefault(log, LogIndex())
    index.read(log)
    return index
