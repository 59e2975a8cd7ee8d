// A button on every page with folded hints and answers: it opens all of them, or folds them again.
document.addEventListener("DOMContentLoaded", () => {
  const article = document.querySelector("article");
  const folds = article ? [...article.querySelectorAll("details")] : [];
  if (folds.length === 0) return;
  const button = document.createElement("button");
  const title = () => folds.every((fold) => fold.open) ? "Fold the answers" : "Open all answers";
  button.className = "answers";
  button.textContent = title();
  button.addEventListener("click", () => {
    const open = !folds.every((fold) => fold.open);
    folds.forEach((fold) => { fold.open = open; });
    button.textContent = title();
  });
  article.querySelector("h1").before(button);
});
