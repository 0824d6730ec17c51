"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, text, parent, className) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    if (parent) parent.append(node);
    return node;
  };

  // Films: filter by kind.
  for (const button of all("[data-show]")) button.onclick = () => {
    for (const other of all("[data-show]")) other.classList.toggle("on", other === button);
    for (const figure of all(".films figure"))
      figure.hidden = button.dataset.show !== "" && figure.dataset.kind !== button.dataset.show;
  };
  // They loop while in view, unless the reader prefers stillness; controls appear under the pointer.
  const videos = all(".films video"), still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let playing = !still;
  const visible = new Set();
  const update = () => { for (const v of videos) playing && visible.has(v) ? v.play().catch(() => {}) : v.pause(); };
  const watcher = new IntersectionObserver((entries) => {
    for (const e of entries) e.isIntersecting ? visible.add(e.target) : visible.delete(e.target);
    update();
  });
  for (const video of videos) {
    watcher.observe(video);
    video.controls = false;
    video.tabIndex = 0;
    for (const event of ["pointerenter", "focus"]) video.addEventListener(event, () => { video.controls = true; });
    for (const event of ["pointerleave", "blur"]) video.addEventListener(event, () => { video.controls = false; });
  }
  for (const button of all("[data-play]")) {
    const label = () => { button.textContent = playing ? "pause" : "play"; };
    button.onclick = () => { playing = !playing; label(); update(); };
    label();
  }

  for (const button of all("[data-copy]")) button.onclick = async () => {
    const pre = button.parentElement.querySelector("pre");
    try { await navigator.clipboard.writeText(pre.textContent); button.textContent = "copied"; }
    catch { getSelection().selectAllChildren(pre); button.textContent = "selected"; }
  };

  // Episodes: sort, search, page.
  const source = document.getElementById("episodes");
  if (!source) return;
  const { columns, rows } = JSON.parse(source.textContent);
  const flags = new Set(["success_once", "success_at_end"]), numbers = new Set(["return", "length", "seed"]);
  const state = { by: null, down: false, page: 0, find: "", only: "" }, size = 25;
  const root = document.getElementById("table");
  root.textContent = "";
  const bar = make("div", undefined, root, "chips");
  for (const [key, name] of [["", "all"], ["0", "failures"], ["1", "successes"]]) {
    const button = make("button", name, bar, key === "" ? "on" : "");
    button.onclick = () => {
      for (const other of all("button", bar)) other.classList.toggle("on", other === button);
      state.only = key; state.page = 0; draw();
    };
  }
  const input = make("input", undefined, bar);
  input.placeholder = "seed, policy, ending …";
  input.setAttribute("aria-label", "search episodes");
  input.oninput = () => { state.find = input.value.toLowerCase(); state.page = 0; draw(); };
  const table = make("table", undefined, make("div", undefined, root, "scroll"));
  const pager = make("div", undefined, root, "pager");
  const once = columns.indexOf("success_once");

  const compare = (a, b) => {
    const x = a[state.by], y = b[state.by];
    if (columns[state.by] === "seed") return BigInt(x) < BigInt(y) ? -1 : BigInt(x) > BigInt(y) ? 1 : 0;
    return typeof x === "number" ? x - y : String(x).localeCompare(String(y));
  };

  function draw() {
    let shown = rows.filter((r) => (state.only === "" || String(r[once]) === state.only)
      && (!state.find || r.some((v) => String(v).toLowerCase().includes(state.find))));
    if (state.by !== null) shown = shown.slice().sort((a, b) => (state.down ? -1 : 1) * compare(a, b));
    const pages = Math.max(1, Math.ceil(shown.length / size));
    state.page = Math.min(state.page, pages - 1);
    table.textContent = "";
    const head = make("tr", undefined, make("thead", undefined, table));
    columns.forEach((name, i) => {
      const cell = make("th", name.replaceAll("_", " "), head, numbers.has(name) ? "n" : "");
      cell.tabIndex = 0;
      if (state.by === i) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      cell.onclick = () => { state.down = state.by === i && !state.down; state.by = i; draw(); };
      cell.onkeydown = (event) => { if (event.key === "Enter") cell.onclick(); };
    });
    const body = make("tbody", undefined, table);
    for (const row of shown.slice(state.page * size, (state.page + 1) * size)) {
      const line = make("tr", undefined, body);
      row.forEach((value, i) => {
        const name = columns[i];
        if (flags.has(name)) make("td", value ? "yes" : "no", line, value ? "yes" : "no");
        else make("td", value, line, numbers.has(name) ? "n" : "");
      });
    }
    pager.textContent = "";
    const step = (text, by) => {
      const button = make("button", text, pager);
      button.disabled = state.page + by < 0 || state.page + by >= pages;
      button.onclick = () => { state.page += by; draw(); };
    };
    step("‹", -1); step("›", 1);
    make("span", `${shown.length} of ${rows.length} episodes, page ${state.page + 1} of ${pages}`, pager);
  }
  draw();
})();
