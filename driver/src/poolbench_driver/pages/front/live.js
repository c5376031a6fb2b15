// Renews a page while somebody sees it, and sends dead letters again or drops them. Markup comes from its own server.
"use strict";
(() => {
  const INTERVAL_MS = 3000;
  const { make, replace } = globalThis.poolbench;
  const status = make("p", { className: "note", role: "status" });
  let last = "", timer = 0;

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
      for (const [verb, text] of [["drop", "Drop"], ["retry", "Send again"]]) {
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
        replace(main, fetched, addActions);
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
