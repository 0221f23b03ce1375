// What pages gain from JavaScript: a live view that never takes anything out of your hands, the
// keyboard, the theme, copying. Every page works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  const $ = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const store = {
    get(key) { try { return localStorage.getItem("bluecone." + key); } catch { return null; } },
    set(key, value) { try { localStorage.setItem("bluecone." + key, value); } catch { /* kept for this page only */ } },
  };
  const live = () => $("#live");

  // --- live view ---------------------------------------------------------------------------
  // The reader is busy with something: selected rows, an open dialog or explanation, a field that is being edited, marked text.
  function isBusy() {
    const active = document.activeElement;
    const editing = active && live()?.contains(active) && active.matches("input:not([type=checkbox]), textarea, select");
    const marked = getSelection();
    return Boolean($("#live input:checked, #live details[open], dialog[open], details.act[open]")) || Boolean(editing) ||
      (marked && !marked.isCollapsed && live()?.contains(marked.anchorNode));
  }
  let timer = 0;
  let busy = false;
  function refresh() {
    if (!live() || busy) return;
    busy = true;
    live().dispatchEvent(new Event("refresh"));
  }
  function beat() {
    const seconds = Number($("#every")?.value || 0);
    clearTimeout(timer);
    showPaused();
    if (!seconds) return;
    timer = setTimeout(() => {
      if (!document.hidden && !isBusy()) refresh();
      beat();
    }, seconds * 1000);
  }
  function showPaused() {
    const on = Number($("#every")?.value || 0) > 0 && isBusy();
    root.classList.toggle("live-paused", on);
  }
  // What had the focus gets it back, by its id or by its place in the table.
  let focus = null;
  function remember() {
    const active = document.activeElement;
    focus = active && live()?.contains(active) ? { id: active.id, href: active.getAttribute("href"), row: active.closest("[data-key]")?.dataset.key } : null;
    if (focus) focus.here = Boolean(active.closest("tr.here"));
    here = $("tr.here")?.dataset.key || here;
  }
  function restore() {
    busy = false;
    const byKey = (key) => all("#live [data-key]").find((row) => row.dataset.key === key);
    if (focus && document.activeElement === document.body) {
      const row = focus.row && byKey(focus.row);
      const target = (focus.id && document.getElementById(focus.id)) || (focus.href && all("a", row || live()).find((a) => a.getAttribute("href") === focus.href)) || (row && $("a, input, summary", row));
      target?.focus({ preventScroll: true });
    }
    if (here) byKey(here)?.classList.add("here");
    focus = null;
    arrive();
  }
  // A response that comes while the reader has become busy is thrown away.
  for (const name of ["htmx:beforeSwap", "htmx:before:swap"]) {
    document.addEventListener(name, (event) => {
      if (event.target !== live()) return;
      const detail = event.detail || {};
      const status = detail.xhr?.status || detail.ctx?.response?.status || 200;
      if (isBusy() || status !== 200) { event.preventDefault(); if ("shouldSwap" in detail) detail.shouldSwap = false; busy = false; return; }
      remember();
    });
  }
  for (const name of ["htmx:afterSettle", "htmx:after:swap", "htmx:finally:request"]) document.addEventListener(name, () => setTimeout(restore, 0));
  for (const name of ["htmx:error", "htmx:sendError", "htmx:responseError"]) document.addEventListener(name, () => { busy = false; });

  const every = $("#every");
  if (every) {
    every.value = store.get("every") ?? "5";
    if (every.selectedIndex < 0) every.value = "5";
    every.addEventListener("change", () => { store.set("every", every.value); beat(); });
  }
  for (const name of ["change", "toggle", "focusin", "focusout", "selectionchange", "close"]) document.addEventListener(name, showPaused, true);

  // --- selection -----------------------------------------------------------------------------
  function countSelection() {
    const bar = $(".selection");
    if (!bar) return;
    const n = all("#live tbody input[name=id]:checked").length;
    bar.classList.toggle("on", n > 0);
    const counter = $("[data-count]", bar);
    if (counter) counter.textContent = String(n);
    const box = $("#all-rows");
    if (box) { const boxes = all("#live tbody input[name=id]"); box.checked = n > 0 && n === boxes.length; box.indeterminate = n > 0 && n < boxes.length; }
  }
  document.addEventListener("change", (event) => {
    if (event.target.id === "all-rows") for (const box of all("#live tbody input[name=id]")) box.checked = event.target.checked;
    countSelection();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-clear]")) {
      for (const box of all("#live input:checked")) box.checked = false;
      countSelection(); showPaused();
      reach(current()); // the button that had the focus is gone
    }
  });

  // --- dialogs, copying, double clicks ---------------------------------------------------------
  document.addEventListener("click", (event) => {
    for (const open of all("details.why[open], details.act[open]")) if (!open.contains(event.target)) open.open = false;
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy.dataset.copy, copy);
    if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
  });
  async function copyText(text, button) {
    let done = false;
    try { await navigator.clipboard.writeText(text); done = true; } catch {
      const area = document.createElement("textarea"); // a page that came over plain http has no clipboard
      area.value = text; document.body.append(area); area.select();
      done = document.execCommand("copy"); area.remove(); button.focus();
    }
    if (done) { $("#said").textContent = button.dataset.copied; button.classList.add("copied"); setTimeout(() => button.classList.remove("copied"), 1500); }
  }
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    for (const button of all("button", event.target)) setTimeout(() => { button.disabled = true; }, 0);
  });
  addEventListener("pageshow", () => { for (const button of all("form[method=post] button[disabled]")) button.disabled = false; });

  // --- theme ---------------------------------------------------------------------------------
  $("#theme")?.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store.set("theme", root.dataset.theme);
  });

  // --- keyboard ------------------------------------------------------------------------------
  let here = null; // key of the row that j and k are at
  let after = "";  // "g" waits for a second letter
  const rows = () => all("#live tbody tr[data-key]");
  const current = () => rows().find((row) => row.dataset.key === here); // by its key: a new view marks it a moment later
  function reach(row) { if (row) $("a", row)?.focus({ preventScroll: true }); }
  function move(step) {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((row) => row.dataset.key === here);
    const next = list[Math.min(Math.max(at + step, 0), list.length - 1)];
    for (const row of list) row.classList.toggle("here", row === next);
    here = next.dataset.key;
    reach(next);
    next.scrollIntoView({ block: "nearest" });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape") { for (const open of all("details.why[open], details.act[open]")) { open.open = false; $("summary", open)?.focus(); } return; }
    if (event.target.closest("input:not([type=checkbox]), textarea, select, dialog[open]")) return;
    if (after === "g") {
      after = "";
      const link = $(`.nav a[data-go="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    switch (event.key) {
      case "/": event.preventDefault(); $("#q")?.focus(); $("#q")?.select(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "Enter": { const row = current(); if (row && !event.target.closest("a, button, summary, input")) $("a", row)?.click(); break; }
      case "x": { const row = current(), box = row && $("input[name=id]", row); if (box) { box.checked = !box.checked; countSelection(); showPaused(); } break; }
      case "r": refresh(); break;
      case "g": after = "g"; setTimeout(() => { after = ""; }, 10000); break;
      case "?": event.preventDefault(); $("#help")?.showModal(); break;
    }
  });
  $("#help-button")?.addEventListener("click", () => $("#help").showModal());

  // --- times: the title says the reader's own time as well ------------------------------------
  function arrive() {
    for (const time of all("time[datetime]:not([data-local])")) {
      time.dataset.local = "";
      const at = new Date(time.dateTime);
      if (!isNaN(at)) time.title += "\n" + at.toLocaleString(root.lang, { dateStyle: "medium", timeStyle: "long" });
    }
    countSelection();
    showPaused();
  }
  arrive();
  beat();
})();
