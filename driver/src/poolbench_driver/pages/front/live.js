// Renews a page while somebody sees it, and sends dead letters again or drops them. Markup comes from its own server.
"use strict";
(() => {
  const INTERVAL_MS = 3000;
  const { make, addTables } = globalThis.poolbench;
  const status = make("p", { className: "note", role: "status" });
  const FOCUSABLE = "a, button, input, select, summary";
  let last = "", timer = 0;

  const nameOf = (node) => `${node.tagName} ${node.textContent} ${node.closest("tr")?.cells[0].textContent ?? ""}`;
  const replace = (main, fetched) => {
    const focused = main.contains(document.activeElement) ? nameOf(document.activeElement) : "";
    const opened = new Set([...main.querySelectorAll("details[open] > summary")].map(nameOf));
    main.replaceChildren(...fetched.childNodes);
    for (const summary of main.querySelectorAll("summary")) if (opened.has(nameOf(summary))) summary.parentNode.open = true;
    addTables(main);
    addActions(main);
    if (focused) [...main.querySelectorAll(FOCUSABLE)].find((node) => nameOf(node) === focused)?.focus();
  };

  const act = async (letter, verb) => {
    if (verb === "drop" && !confirm("Drop this letter? Its task is not sent again.")) return;
    try {
      const response = await fetch(`api/dead-letters/${letter}/${verb}`, { method: "POST" });
      const answer = await response.json();
      status.textContent = answer.error?.message
        ?? answer.reports.map((report) => [report.task_id, report.verdict, report.why].filter(Boolean).join(" ")).join("; ");
    } catch (error) {
      status.textContent = `The letter was left as it is: ${error.message}`;
    }
    renew();
  };

  const addActions = (root) => {
    for (const link of root.querySelectorAll("a[data-opens^='dead-letters/']")) {
      for (const [verb, text] of [["retry", "Send again"], ["drop", "Drop"]]) {
        const button = make("button", { type: "button", textContent: text });
        button.addEventListener("click", () => act(link.dataset.opens.split("/")[1], verb));
        link.after(" ", button);
      }
    }
  };

  const renew = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    const main = document.querySelector("main");
    try {
      const response = await fetch(location.href);
      if (response.redirected) return location.assign(response.url); // the cookie has expired
      const body = await response.text();
      if (!response.ok) throw new Error(`the server answers ${response.status}`);
      const fetched = new DOMParser().parseFromString(body, "text/html").querySelector("main");
      const isBusy = document.querySelector("dialog") || document.activeElement?.matches("main input");
      if (fetched.innerHTML !== last && !isBusy) {
        last = fetched.innerHTML;
        replace(main, fetched);
      }
      if (status.textContent.startsWith("Waiting")) status.textContent = "";
    } catch (error) {
      status.textContent = `Waiting for the cluster: ${error.message}`;
    }
    timer = setTimeout(renew, INTERVAL_MS);
  };

  document.addEventListener("visibilitychange", renew);
  document.querySelector("main").before(status);
  addActions(document);
  timer = setTimeout(renew, INTERVAL_MS);
})();
