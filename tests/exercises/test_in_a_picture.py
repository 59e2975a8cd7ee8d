"""README's picture of a blank shows the threads that its verdict is about."""

import re

from pa_tutorial.exercises.in_a_picture import draw_blank_to_right


def test_the_thread_that_the_verdict_names_is_in_the_picture_of_both_answers() -> None:
    (axes,) = draw_blank_to_right().axes
    words = [text.get_text() for text in axes.texts]
    (verdict,) = (text for text in words if "framed: wrong" in text)
    thread = re.search(r"of thread (\d+) should be", verdict)[1]
    wrong, right = (words.index("K is read by\nthread", at) for at in (0, words.index(verdict)))
    assert thread in words[wrong : words.index(verdict)]
    assert thread in words[right:]
