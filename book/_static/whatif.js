// What-if panels: draws the frame that the sliders choose, from the panel's own table of values.
(() => {
  const scale = (kind, low, high, length) => {
    const of = kind === "log" ? Math.log : Number;
    return (value) => ((of(value) - of(low)) / (of(high) - of(low))) * length;
  };

  const start = (panel) => {
    const [xKind, x0, x1, width, yKind, y0, y1, height] = JSON.parse(panel.dataset.area);
    const xOf = scale(xKind, x0, x1, width);
    const yOf = scale(yKind, y1, y0, height); // downwards
    const point = (x, y) => `${xOf(x).toFixed(1)} ${yOf(y).toFixed(1)}`;
    const frames = [...panel.querySelectorAll("tbody")];
    const sliders = [...panel.querySelectorAll("input[type=range]")];
    const shapes = [...panel.querySelectorAll("[data-draw]")];
    const readout = panel.querySelector(".pb-whatif-readout");

    const draw = (frame) => {
      const rows = [...frame.rows].slice(1).map((row) => [...row.cells].map((cell) => cell.textContent));
      const along = (column) => rows.filter((row) => row[column] !== "").map((row) => point(row[0], row[column]));
      const places = JSON.parse(frame.dataset.places);
      for (const shape of shapes) {
        const { draw: kind, columns, glyph } = shape.dataset;
        let d = "";
        if (kind === "vertical") d = `M${xOf(places.shift()).toFixed(1)} 0V${height}`;
        else if (kind === "horizontal") d = `M0 ${yOf(places.shift()).toFixed(1)}H${width}`;
        else if (kind === "line") d = `M${along(columns).join("L")}`;
        else if (kind === "marks") d = along(columns).map((at) => `M${at}${glyph}`).join("");
        else if (kind === "band") {
          const [low, high] = columns.split(" ").map(along);
          d = `M${[...low, ...high.reverse()].join("L")}z`;
        }
        shape.setAttribute("d", d);
      }
    };

    const show = () => {
      let position = 0; // the last slider changes fastest
      for (const slider of sliders) {
        const text = JSON.parse(slider.dataset.texts)[slider.value];
        slider.setAttribute("aria-valuetext", text);
        slider.nextElementSibling.textContent = text;
        position = position * (Number(slider.max) + 1) + Number(slider.value);
      }
      draw(frames[position]);
      const said = frames[position].rows[0].cells[0].textContent;
      if (readout.textContent !== said) readout.textContent = said;
    };

    for (const slider of sliders) slider.addEventListener("input", show);
    panel.querySelector(".pb-whatif-controls").hidden = false;
    show(); // a browser may have kept where the sliders stood
  };

  const startAll = () => document.querySelectorAll(".pb-whatif").forEach(start);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startAll);
  else startAll();
})();
