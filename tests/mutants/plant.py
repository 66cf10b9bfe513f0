"""One fault in a file of the working tree, for as long as it is looked at."""

import pathlib
import shutil


class Planted:
    """Within it the file has the fault. The folder `kept` holds the file as it was: where a run is
    killed, restore() puts it back."""

    def __init__(self, file, old, new, kept):
        self.file, self.old, self.new, self.kept = pathlib.Path(file), old, new, kept

    def __enter__(self):
        text = self.file.read_text()
        assert text.count(self.old) == 1, f"{self.file}: {self.old!r}"
        self.kept.mkdir(parents=True, exist_ok=True)
        (self.kept / "text").write_text(text)
        (self.kept / "where").write_text(str(self.file.resolve()))
        self.file.write_text(text.replace(self.old, self.new))
        return self

    def __exit__(self, *_):
        self.restore(self.kept)

    @staticmethod
    def restore(kept):
        """Puts back what a run left planted."""
        if (kept / "where").exists():
            pathlib.Path((kept / "where").read_text()).write_text((kept / "text").read_text())
            shutil.rmtree(kept)
