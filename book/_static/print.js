// Paper is white and cannot be clicked: printing shows light colours and everything that a click would unfold.
// The theme's own script unfolds the boxes that it folded itself.
(() => {
  let before = null;

  addEventListener("beforeprint", () => {
    if (before) return;
    const root = document.documentElement;
    const closed = [...document.querySelectorAll(".bd-article details:not([open])")];
    before = { theme: root.dataset.theme, closed };
    root.dataset.theme = "light";
    for (const details of closed) details.open = true;
    // a picture that the reader has not scrolled to would print as a hole
    for (const image of document.querySelectorAll('img[loading="lazy"]')) image.loading = "eager";
  });

  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme === undefined) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = before.theme;
    for (const details of before.closed) details.open = false;
    before = null;
  });
})();
