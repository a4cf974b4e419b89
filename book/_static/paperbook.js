// Names for the theme's sidebar toggles, which come without one.
document.addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll("summary")) {
    if (!toggle.textContent.trim()) {
      const link = toggle.closest("li")?.querySelector("a");
      toggle.setAttribute("aria-label", `Sections of ${link ? link.textContent.trim() : "this chapter"}`);
    }
  }
});
