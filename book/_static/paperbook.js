// What the theme leaves without a name, and keyboards without a way in.
document.addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll("summary")) {
    if (!toggle.textContent.trim()) {
      const link = toggle.closest("li")?.querySelector("a");
      toggle.setAttribute("aria-label", `Sections of ${link ? link.textContent.trim() : "this chapter"}`);
    }
  }
  const home = document.querySelector(".sidebar-primary-items__start");
  home?.setAttribute("role", "region");
  home?.setAttribute("aria-label", "Home and search");

  // A formula, table or listing that is wider than the column scrolls by itself: the keyboard must reach it. Looked at only
  // when it comes into view, because measuring what is out of sight would lay out the whole page.
  const wide = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      if (target.scrollWidth > target.clientWidth + 1) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  }, { rootMargin: "200px" });
  const scrolling = 'mjx-container[display="true"], div.highlight pre, .cell_output .output, .pst-scrollable-table-container';
  const boxes = document.querySelectorAll(scrolling);
  const look = () => boxes.forEach((box) => { wide.unobserve(box); wide.observe(box); });
  look();
  let turning;  // a phone that is turned changes what is wide
  addEventListener("resize", () => { clearTimeout(turning); turning = setTimeout(look, 150); });
});
