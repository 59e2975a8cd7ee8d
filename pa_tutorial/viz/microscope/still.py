def draw_step(data):
    raise NotImplementedError
