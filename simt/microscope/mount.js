// For anywidget, and for a page that calls mount itself.
function mount(root, data) {
  return new Microscope(root, data);
}

export default {
  render({ model, el }) {
    mount(el, JSON.parse(model.get("data")));
  },
};
