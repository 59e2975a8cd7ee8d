"""Write notebooks/INDEX.md: `python -m pa_tutorial.index`."""

from pa_tutorial.index.find import ROOT
from pa_tutorial.index.write import index


def main() -> None:
    path = ROOT / "notebooks" / "INDEX.md"
    path.write_text(index(), encoding="utf-8")
    print(f"{path.relative_to(ROOT)} written")


if __name__ == "__main__":
    main()
