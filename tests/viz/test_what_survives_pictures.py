"""The picture of notebook 18 has the sizes of DeepSeek-V3."""

from pa_tutorial.viz.latent import draw_two_ways


def test_the_two_ways_multiply_sizes_that_fit() -> None:
    """512 elements of latent, 64 of position, 128 heads of 128."""
    texts = {text.get_text() for axes in draw_two_ways().axes for text in axes.texts}
    rows = "rows of the cache\nT × (512 + 64)"
    assert {rows, "q\n128 × 192", "q · w_k\n128 × (512 + 64)", "out\n128 × 128"} <= texts
    assert "V = latents · w_v\nT × 128 × 128" in texts
