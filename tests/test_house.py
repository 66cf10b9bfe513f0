"""House rules that a glance can miss."""

import pathlib
import re

import relpos

ROOT = pathlib.Path(__file__).parent.parent


def test_kernels_know_terms_and_no_scheme():
    names = {name for s in relpos.schemes() for name in (s.name, s.class_name)}
    names |= {"kerple", "deberta", "music"}
    scheme = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, names))})", re.IGNORECASE)
    files = [ROOT / "include/relpos/terms.h", *sorted((ROOT / "src/kernels").iterdir())]
    assert len(files) > 10
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not scheme.search(line), f"{path.name}:{number}: {line.strip()}"
