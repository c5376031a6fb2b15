// Adds to every page: tables that sort, filter and copy, figures whose points say what they are, and dialogs for what
// stands behind a cell. Texts are only ever written as text; markup comes from the page itself or from its own server.
"use strict";
(() => {
  const make = (name, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };

  // --- dialogs -------------------------------------------------------------------------------------------------------
  const showDialog = (title, ...contents) => {
    const opener = document.activeElement;
    const close = make("form", { method: "dialog" }, make("button", { textContent: "Close" }));
    const dialog = make("dialog", { ariaLabel: title }, close, ...contents);
    dialog.addEventListener("close", () => { dialog.remove(); opener?.focus(); });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    document.body.append(dialog);
    addTables(dialog);
    dialog.showModal();
    return dialog;
  };

  const open = async (address, name) => {
    const kept = document.querySelector(`template[data-opens="${CSS.escape(address)}"]`);
    if (kept) return showDialog(name, kept.content.cloneNode(true));
    const url = new URL(address, document.baseURI);
    url.searchParams.set("part", "1");
    const dialog = showDialog(name, make("p", { textContent: "Reading…" }));
    try {
      const response = await fetch(url);
      const body = await response.text();
      if (!response.ok) throw new Error(messageOf(body) || `the server answers ${response.status}`);
      const page = new DOMParser().parseFromString(body, "text/html");
      dialog.lastChild.replaceWith(...page.body.childNodes);
      addTables(dialog);
    } catch (error) {
      dialog.lastChild.replaceWith(make("p", { textContent: `This cannot be shown: ${error.message}` }));
    }
  };

  const messageOf = (body) => {
    try { return JSON.parse(body).error.message; } catch { return ""; }
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-opens]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.dataset.opens, link.textContent);
  });

  // --- tables --------------------------------------------------------------------------------------------------------
  const textOf = (cell) => {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll(".unseen, .mark").forEach((node) => node.remove());
    return copy.textContent.trim().replace(/\s+/g, " ");
  };
  const isNumber = /^[-+−]?(\d|\.\d)/;
  const valueOf = (cell) => (cell && isNumber.test(textOf(cell)) ? parseFloat(textOf(cell).replace("−", "-")) : NaN);
  const rowsOf = (table) => [...table.tBodies[0].rows];
  const heads = (table) => {
    let place = 0;
    return [...table.tHead.rows[table.tHead.rows.length - 1].cells].map((head) => {
      const column = { head, place, drawn: head.colSpan === 2 };
      place += head.colSpan;
      return column;
    });
  };

  const sort = (table, column, order) => {
    const sign = order === "descending" ? -1 : 1;
    const key = (row) => row.cells.length > column.place ? row.cells[column.place] : null;
    const entries = rowsOf(table).map((row, number) => {
      const cell = key(row);
      return { row, number, value: valueOf(cell), text: cell ? textOf(cell) : "" };
    });
    entries.sort((a, b) => {
      const [no, yes] = [Number.isNaN(a.value), Number.isNaN(b.value)];
      if (no !== yes) return no - yes; // what has no number stands last in either order
      return (no ? sign * a.text.localeCompare(b.text) : sign * (a.value - b.value)) || a.number - b.number;
    });
    table.tBodies[0].append(...entries.map((entry) => entry.row));
    for (const { head } of heads(table)) head.removeAttribute("aria-sort");
    column.head.setAttribute("aria-sort", order);
  };

  const filter = (table, words) => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rowsOf(table)) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    }
  };

  const cellsOf = (table) => {
    const columns = heads(table);
    const lines = rowsOf(table).filter((row) => !row.hidden);
    const body = lines.map((row) => columns.map(({ place }) => (row.cells[place] ? textOf(row.cells[place]) : "")));
    return [columns.map(({ head }) => textOf(head)), ...body];
  };
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const SPECIAL = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const latex = (text) => text.replace(/[\\~^&%$#_{}]/g, (sign) => SPECIAL[sign] || `\\${sign}`);
  const FORMS = {
    // A cell that a spreadsheet would take for a formula is written as text.
    CSV: (lines) => lines.map((line) => line.map((t) => quoted(/^[=@\t]/.test(t) ? `'${t}` : t)).join(",")).join("\r\n"),
    Markdown: ([head, ...lines]) =>
      [head, head.map(() => "---"), ...lines].map((line) => `| ${line.map((t) => t.replaceAll("|", "\\|")).join(" | ")} |`).join("\n"),
    LaTeX: ([head, ...lines]) => {
      const row = (line) => `${line.map(latex).join(" & ")} \\\\`;
      const rules = ["\\toprule", row(head), "\\midrule", ...lines.map(row), "\\bottomrule"];
      return [`\\begin{tabular}{l${"r".repeat(head.length - 1)}}`, ...rules, "\\end{tabular}"].join("\n");
    },
  };
  const ENDINGS = { CSV: "csv", Markdown: "md", LaTeX: "tex" };

  // A table that its server orders shows some lines at a time: all of them are fetched.
  const wholeOf = async (table) => {
    if (!table.tHead.querySelector("a")) return table;
    const url = new URL(location.href);
    url.searchParams.set("start", "0");
    url.searchParams.set("lines", "99999999");
    const page = new DOMParser().parseFromString(await (await fetch(url)).text(), "text/html");
    return page.querySelector("table.board") || table;
  };

  const offer = async (table, form) => {
    const text = FORMS[form](cellsOf(await wholeOf(table)));
    const area = make("textarea", { value: text, readOnly: true, ariaLabel: `The table as ${form}` });
    const copy = make("button", { type: "button", textContent: "Copy" });
    copy.addEventListener("click", () => {
      area.select();
      navigator.clipboard?.writeText(text);
      copy.textContent = "Copied";
    });
    const href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    const save = make("a", { href, download: `board.${ENDINGS[form]}`, textContent: "Save as a file" });
    showDialog(form, area, make("p", {}, copy, " ", save)).addEventListener("close", () => URL.revokeObjectURL(href));
    area.select();
  };

  // The state of the board is in the address, after its anchor: #leaderboard?sort=3:descending&words=mean
  const stateOf = () => new URLSearchParams(location.hash.split("?")[1] || "");
  const remember = (name, value) => {
    const state = stateOf();
    if (value) state.set(name, value); else state.delete(name);
    history.replaceState(null, "", `#leaderboard${state.size ? `?${state}` : ""}`);
  };

  const addSorting = (table, isBoard) => {
    if (!table.tHead || rowsOf(table).length < 2 || table.tHead.querySelector("a, button")) return;
    for (const column of heads(table).filter(({ head }) => head.textContent)) {
      const button = make("button", { type: "button" }, ...column.head.childNodes);
      column.head.replaceChildren(button);
      button.addEventListener("click", () => {
        const first = Number.isNaN(valueOf(rowsOf(table)[0].cells[column.place])) ? "ascending" : "descending";
        const other = first === "ascending" ? "descending" : "ascending";
        const order = column.head.getAttribute("aria-sort") === first ? other : first;
        sort(table, column, order);
        if (isBoard) remember("sort", `${column.place}:${order}`);
      });
    }
  };

  const addTools = (table) => {
    const words = make("input", { type: "search", value: stateOf().get("words") || "" });
    words.addEventListener("input", () => { filter(table, words.value); remember("words", words.value); });
    const label = make("label", {}, make("span", { textContent: "Lines with the words" }), words);
    const buttons = Object.keys(FORMS).map((form) => {
      const button = make("button", { type: "button", textContent: form });
      button.addEventListener("click", () => offer(table, form));
      return button;
    });
    const isOrderedByServer = table.tHead.querySelector("a");
    table.closest(".scroll").before(make("div", { className: "tools" }, ...(isOrderedByServer ? [] : [label]), ...buttons));
    filter(table, words.value);
    const [place, order] = (stateOf().get("sort") || "").split(":");
    const column = heads(table).find((one) => String(one.place) === place);
    if (column && !isOrderedByServer) sort(table, column, order === "ascending" ? order : "descending");
    if (location.hash.startsWith("#leaderboard?")) document.getElementById("leaderboard").scrollIntoView();
  };

  const addTables = (root) => {
    for (const table of root.querySelectorAll("table")) {
      const isBoard = table.matches("main > .scroll > .board");
      addSorting(table, isBoard);
      if (isBoard && table.tHead) addTools(table);
    }
  };

  // --- figures: the points say what they are, under the pointer and by the arrow keys -----------------------------------
  const hint = make("div", { className: "hint", hidden: true, role: "status" });
  document.body.append(hint);
  const show = (point) => {
    const box = point.getBoundingClientRect();
    hint.textContent = point.getAttribute("aria-label");
    hint.hidden = false;
    hint.style.left = `${Math.max(4, Math.min(box.left, innerWidth - hint.offsetWidth - 8))}px`;
    hint.style.top = `${box.top > 40 ? box.top - hint.offsetHeight - 6 : box.bottom + 6}px`;
  };
  const POINT = "figure svg [aria-roledescription][aria-label]:not(g)";
  document.addEventListener("pointerover", (event) => {
    const point = event.target.closest?.(POINT);
    if (point) show(point); else hint.hidden = true;
  });
  for (const figure of document.querySelectorAll("figure")) {
    const points = [...figure.querySelectorAll(POINT.replace("figure ", ""))];
    if (!points.length) continue;
    let place = -1;
    figure.tabIndex = 0;
    figure.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      place = (place + step + points.length) % points.length;
      show(points[place]);
    });
    figure.addEventListener("blur", () => { hint.hidden = true; });
  }

  // --- views that take each other's place without a new page ---------------------------------------------------------------
  const nameOf = (node) => `${node.tagName} ${node.name ?? ""} ${node.textContent} ${node.closest("tr")?.cells[0].textContent ?? ""}`;
  // Put what was fetched in the place of what is there, with what `add` adds to it; focus and opened details stay.
  const replace = (main, fetched, add = () => {}) => {
    const focused = main.contains(document.activeElement) ? nameOf(document.activeElement) : "";
    const opened = new Set([...main.querySelectorAll("details[open] > summary")].map(nameOf));
    main.replaceChildren(...fetched.childNodes);
    for (const summary of main.querySelectorAll("summary")) if (opened.has(nameOf(summary))) summary.parentNode.open = true;
    addTables(main);
    add(main);
    if (focused) [...main.querySelectorAll("a, button, input, select, summary")].find((node) => nameOf(node) === focused)?.focus();
  };
  const mainOf = async (address) => {
    const response = await fetch(address);
    const body = await response.text();
    if (!response.ok || response.redirected) throw new Error(`the server answers ${response.status}`); // or the cookie has expired
    return new DOMParser().parseFromString(body, "text/html").querySelector("main");
  };
  let newest = 0;
  const visit = async (address, isNew) => {
    const number = (newest += 1);
    try {
      const fetched = await mainOf(address);
      if (number !== newest) return; // a later choice
      if (isNew) history.pushState(null, "", address);
      replace(document.querySelector("main"), fetched);
      const heading = document.getElementById("leaderboard");
      if (isNew && heading?.getBoundingClientRect().top < 0) heading.scrollIntoView();
    } catch {
      location.assign(address); // whose page says what is wrong
    }
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("thead a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    visit(link.href, true);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form.choices:not([action], [method])")) return;
    event.preventDefault();
    visit(`?${new URLSearchParams(new FormData(form))}`, true);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("form.choices select")) event.target.form.requestSubmit();
  });
  if (document.querySelector("form.choices"))
    addEventListener("popstate", () => { if (!location.hash) visit(location.href, false); });

  addTables(document);
  globalThis.poolbench = { make, showDialog, replace };
})();
