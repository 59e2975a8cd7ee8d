"""Operates the microscope's page as a reader does."""

from pathlib import Path

PLACE = """([title, cell]) => {
  const grid = microscope.grids.find((g) => g.shape.title.startsWith(title));
  grid.tile = grid.tileOf(cell);
  grid.draw();
  const { x, y, w, h } = grid.box(cell);
  return { x: x + w / 2, y: y + h / 2 };
}"""
LIT = """(title) => {
  const grid = microscope.grids.find((g) => g.shape.title.startsWith(title));
  return [...grid.now.keys()].map((cell) => grid.address(cell));
}"""
# Texts with too little contrast: their colours, and those of what they stand on.
UNREADABLE = """() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const linear = (part) =>
      part > 10 ? ((part / 255 + 0.055) / 1.055) ** 2.4 : part / 255 / 12.92;
    const [r, g, b] = parts(color).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const paper = (part) => {
    const color = getComputedStyle(part).backgroundColor;
    return parts(color)[3] === 0 ? paper(part.parentElement) : color;
  };
  const texts = [...document.querySelectorAll(".microscope, .microscope *")].flatMap((part) => [
    ...([...part.childNodes].some((node) => node.data?.trim()) ? [[part, null]] : []),
    ...(part.matches(".search") ? [[part, null], [part, "::placeholder"]] : []),
  ]);
  return texts.flatMap(([part, pseudo]) => {
    const colors = [getComputedStyle(part, pseudo).color, paper(part)];
    const [dark, bright] = colors.map(light).sort((a, b) => a - b);
    return bright / dark < 4.5 ? [[part.className, part.textContent, ...colors]] : [];
  });
}"""


class Reader:
    """Somebody who looks at a page. What goes wrong in it is kept in `problems`."""

    def __init__(self, browser, html: Path, width: int = 1280, scale: float = 1) -> None:
        size = {"width": width, "height": 1000}
        self.page = browser.new_page(viewport=size, device_scale_factor=scale)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(html.as_uri())
        self.keyboard = self.page.keyboard

    @property
    def at(self) -> int:
        """The warp instruction at which the page stands, a number as in the trace."""
        return int(self.page.locator(".microscope").get_attribute("data-step"))

    @property
    def about(self) -> list[str]:
        """What it says of the lane that is followed, and of banks."""
        return self.page.locator(".about").all_inner_texts()

    def go(self, instruction: int) -> None:
        move = "n => microscope.go(microscope.recording.number.indexOf(n))"
        self.page.evaluate(move, int(instruction))

    def text(self, part: str) -> str:
        return self.page.locator(part).inner_text()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.keyboard.press(key)

    def tab_to(self, css: str) -> None:
        presses = 0
        while not self.page.evaluate("css => document.activeElement.matches(css)", css):
            self.press("Tab")
            assert (presses := presses + 1) < 80, f"the Tab key does not come to {css}"

    def follow(self, *, warp: int | None = None, lane: int | None = None) -> None:
        if warp is not None:
            self.page.get_by_label("warp", exact=True).select_option(f"warp {warp}")
        if lane is not None:
            self.button(f"lane {lane}").click()

    def button(self, name: str):
        return self.page.get_by_role("button", name=name, exact=True)

    def click_line(self, text: str, times: int = 1) -> None:
        line = self.page.locator(".line.reached", has_text=text).first
        for _ in range(times):
            line.click()

    def find(self, name: str) -> None:
        self.page.get_by_label("find an element").fill(name)
        self.press("Enter")

    def canvas(self, title: str):
        return self.page.locator(f"canvas[aria-label^='{title}']")

    def place(self, title: str, cell: int) -> dict[str, float]:
        """The middle of a cell, counted through the tiles of a pane; its tile is shown first."""
        return self.page.evaluate(PLACE, [title, cell])

    def lit(self, title: str) -> list[int]:
        """The addresses of the cells of a pane that are touched now."""
        return sorted(self.page.evaluate(LIT, title))

    def hover(self, title: str, cell: int) -> list[str]:
        """The lines that appear at the pointer."""
        self.canvas(title).hover(position=self.place(title, cell))
        return self.text(".tip").splitlines()
