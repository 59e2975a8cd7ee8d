"""Write notebooks/INDEX.md and notebooks/ERRATA.md: `python -m pa_tutorial.index`."""

from pa_tutorial.index.find import ROOT
from pa_tutorial.index.write import index
from pa_tutorial.index.write_errata import errata


def main() -> None:
    for name, text in (("INDEX.md", index()), ("ERRATA.md", errata())):
        path = ROOT / "notebooks" / name
        path.write_text(text, encoding="utf-8", newline="\n")
        print(f"{path.relative_to(ROOT).as_posix()} written")


if __name__ == "__main__":
    main()
