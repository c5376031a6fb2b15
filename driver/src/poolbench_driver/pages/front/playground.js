// The playground: a prompt continued unsteered and at up to four strengths at once, with scores per token. Its state is in
// the address, after "#", which no server sees. Texts are only ever written as text.
"use strict";
(() => {
  const { html, render, useState, useEffect, useRef } = htmPreact;
  const root = document.getElementById("playground");
  const MOST_STRENGTHS = 4;
  const BEST = "best"; // of the run; until a strength is typed, which may be empty on the way
  const FIRST_STRENGTH = 0.2; // where no run says which is best
  const OWN = "(a vector of a file)";
  const OPERATIONS = ["add", "add_preserving_norm", "clamp", "erase"];
  const DEFAULTS = {
    model: "", prompt: "In the morning", chat: "", concept: "", strategy: "", layer: "", run: "", vector: "", size: "strength",
    operation: "add",
    positions: "generated", strengths: BEST, read: "", read_layer: "", max_tokens: "40", temperature: "0", seed: "0",
  };

  const fromAddress = () => {
    const written = new URLSearchParams(location.hash.slice(1));
    const known = [...written].filter(([name]) => name in DEFAULTS);
    return { ...DEFAULTS, ...Object.fromEntries(known) };
  };
  const toAddress = (state) => {
    const written = new URLSearchParams(Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]));
    history.replaceState(null, "", `#${written}`);
  };

  // --- what the server is asked ------------------------------------------------------------------------------------------
  const SAID = {
    401: "Your session has ended: open the console again and sign in.",
    429: "The steerer is busy; try again in a moment.",
    502: "The cluster does not answer; is it up?",
    503: "The service is not available at the moment; try again.",
    504: "The service did not answer in time; try again.",
  };
  const ask = async (path, options = {}) => {
    let response;
    try {
      response = await fetch(`api/playground${path}`, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The console does not answer; is it still running?");
    }
    if (response.ok) return response;
    let message = "";
    try { message = (await response.json()).error.message; } catch { /* it is no JSON */ }
    throw new Error([SAID[response.status], message].filter(Boolean).join(" ") || `The server answers ${response.status}.`);
  };
  const post = (path, body, signal) =>
    ask(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });

  const lines = async function* (response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let kept = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (kept + value).split("\n");
      kept = parts.pop();
      for (const part of parts) yield JSON.parse(part);
    }
  };

  const parts = (listed) => listed.split(",").filter(Boolean);
  const numbers = (listed) => listed.split(",").filter((part) => part.trim()).map(Number);
  // The vectors of a file, of one layer or of several, with their layers.
  const ownOf = (state) => parts(state.vector).map((id, at) => ({ vector_id: id, layer: Number(parts(state.layer)[at]) }));
  const directionsOf = (state) =>
    state.concept === OWN
      ? ownOf(state)
      : [{ concept: state.concept, strategy: state.strategy, layer: Number(state.layer), run: state.run }];
  // The field of an edit that has its size; the alpha of an erasure is a share.
  const sizeOf = (state) => (state.operation === "erase" ? "alpha" : state.concept === OWN ? state.size : "strength");
  // Strength 0 is unsteered.
  const bodyOf = (state, strength) => {
    const body = { model: state.model, max_tokens: Number(state.max_tokens), temperature: Number(state.temperature) };
    body.seed = Number(state.seed);
    if (state.chat) body.messages = [{ role: "user", content: state.prompt }]; else body.prompt = state.prompt;
    if (strength && state.concept) {
      const edits = directionsOf(state).map((one) => ({ ...one, operation: state.operation, [sizeOf(state)]: strength }));
      body.steering = { edits, positions: /^\d+$/.test(state.positions) ? Number(state.positions) : state.positions };
    }
    if (state.read === OWN && state.vector) body.reading = { vector_id: parts(state.vector)[0], layer: Number(state.read_layer) };
    else if (state.read && state.read !== OWN) body.reading = { concept: state.read, layer: Number(state.read_layer) };
    return body;
  };

  // --- the same elsewhere ------------------------------------------------------------------------------------------------
  const quoted = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
  const COPIES = {
    Python: (bodies) => [
      "import json, os, urllib.request", "",
      'address, token = os.environ["POOLBENCH_HTTP"], os.environ["POOLBENCH_TOKEN"]',
      'headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}',
      `bodies = json.loads(${JSON.stringify(JSON.stringify(bodies))})`,
      `path = "/steerer/v1/${bodies[0].messages ? "chat/" : ""}completions"`,
      "for body in bodies:",
      "    request = urllib.request.Request(address + path, json.dumps(body).encode(), headers)",
      '    print(json.load(urllib.request.urlopen(request))["choices"][0])',
    ].join("\n"),
    curl: (bodies) => bodies.map((body) => [
      `curl -s "$POOLBENCH_HTTP/steerer/v1/${body.messages ? "chat/" : ""}completions"`,
      '-H "Authorization: Bearer $POOLBENCH_TOKEN"', "-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(body))}`,
    ].join(" ")).join("\n"),
    "command line": (bodies, state) => {
      const strengths = numbers(state.strengths);
      const words = ["poolbench-driver steer", quoted(state.prompt), "--model", quoted(state.model)];
      const isNamed = state.concept && state.concept !== OWN;
      if (isNamed && state.operation !== "add") return `# steer --concept only adds; curl and Python can ${state.operation}`;
      if (isNamed && strengths.length)
        words.push("--concept", quoted(state.concept), "--strategy", quoted(state.strategy), "--layer", state.layer,
          "--run", quoted(state.run), `--strength=${strengths.join(",")}`);
      words.push("--positions", quoted(state.positions), "--max-tokens", state.max_tokens, "--temperature", state.temperature, "--seed", state.seed);
      if (state.read && state.read !== OWN) words.push("--read", quoted(state.read));
      if (state.concept !== OWN) return words.join(" ");
      const unit = state.size === "alpha" ? "absolute" : "residual_norm";
      const edits = (strength) => ownOf(state).map(({ vector_id: id, layer }) => `--edit ${id}:${layer}:${strength}:${state.operation}`);
      return strengths.map((one) => [...words, `--unit ${unit}`, ...edits(one)].join(" ")).join("\n");
    },
  };
  const offer = (name, text) => {
    const { make, showDialog } = poolbench;
    const area = make("textarea", { value: text, readOnly: true, ariaLabel: `As ${name}` });
    const copy = make("button", { type: "button", textContent: "Copy" });
    copy.addEventListener("click", () => { area.select(); navigator.clipboard?.writeText(text); copy.textContent = "Copied"; });
    showDialog(name, area, make("p", {}, copy));
  };

  // --- one text ----------------------------------------------------------------------------------------------------------
  const label = (strength) => (strength ? `strength ${strength}` : "unsteered");
  const tokensOf = (pieces) => pieces.flatMap(({ tokens, reading }) => tokens.map((token, at) => [token, reading?.scores[at]]));
  const Token = ({ token, score, range }) => {
    const step = range.width ? Math.round((16 * (score - range.low)) / range.width) - 8 : 0;
    const shade = step ? `${step > 0 ? "k" : "n"}${Math.abs(step)}` : "";
    return html`<span class="token"><span class=${shade}>${token.replaceAll("\n", "↵") || " "}</span><small>${score.toFixed(1)}</small></span>`;
  };
  const proof = ({ receipt, reading, finish_reason: reason }) => {
    const proved = receipt && `${receipt.positions_changed} of ${receipt.positions_expected} positions changed (${receipt.edits
      .map((edit) => `${edit.operation} at layer ${edit.layer} by ${Number(edit.alpha.toPrecision(4))}`).join(", ")})`;
    const read = reading?.layer !== undefined && `read at layer ${reading.layer}`;
    return [proved || "unsteered", read, `ended by ${reason}`].filter(Boolean).join("; ");
  };
  const Text = ({ text, range }) => {
    const { strength, pieces, error, scored } = text;
    const scores = tokensOf(pieces).filter(([, score]) => typeof score === "number");
    const end = pieces.at(-1)?.finish_reason && pieces.at(-1);
    const mean = scores.reduce((sum, [, score]) => sum + score, 0) / scores.length;
    const whole = pieces.map((piece) => piece.text).join("");
    // Parts of a character are no text: then the text stands above its tokens.
    const isInTokens = scores.length > 0 && scores.map(([token]) => token).join("") === whole;
    return html`<section class="text" aria-label=${label(strength)}>
      <h2>${label(strength)}</h2>
      ${!isInTokens && html`<p dir="auto">${whole}</p>`}
      ${scores.length > 0 && html`<p class="tokens" dir="auto" tabindex="0" aria-label=${`Scores by token, ${label(strength)}`}>
        ${scores.map(([token, score]) => html`<${Token} token=${token} score=${score} range=${range} />`)}</p>
        <p class="note">mean score ${mean.toFixed(2)}</p>`}
      ${scored && html`<p class="note">${scored}</p>`}
      ${end && html`<p class="note">${proof(end)}</p>`}
      ${error && html`<p role="alert">${error}</p>`}
    </section>`;
  };

  // --- the choices -------------------------------------------------------------------------------------------------------
  const Choice = ({ name, options, value, onChange }) => html`<label><span>${name}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, shown]) => html`<option value=${key} selected=${key === value}>${shown}</option>`)}
    </select></label>`;
  const Entry = ({ name, value, onChange, ...more }) => html`<label><span>${name}</span>
    <input value=${value} onInput=${(event) => onChange(event.target.value)} ...${more} /></label>`;

  const Strengths = ({ state, limit, set }) => {
    const values = state.strengths.split(",");
    const write = (at, value) => set({ strengths: values.map((old, place) => (place === at ? value : old)).join(",") });
    const most = Math.max(1, 2 * (limit || 0));
    const isFactor = state.concept === OWN && state.size === "alpha";
    const unit = isFactor ? "as factors of the vector" : "in residual norms of the layer";
    return html`<fieldset class="strengths"><legend>Strengths, ${unit} (of an erasure: the share)</legend>
      ${values.map((value, at) => html`<div key=${at}>
        <input type="range" min=${-most} max=${most} step="0.05" value=${value} list="limit" aria-label=${`Strength ${at + 1}, slider`}
          onInput=${(event) => write(at, event.target.value)} />
        <input type="number" step="any" value=${value} aria-label=${`Strength ${at + 1}`} onInput=${(event) => write(at, event.target.value)} />
        ${values.length > 1 && html`<button type="button" onClick=${() => set({ strengths: values.filter((_, place) => place !== at).join(",") })}>
          Remove<span class="unseen"> strength ${at + 1}</span></button>`}
        ${limit !== null && Math.abs(value) > limit && html`<span> beyond ${limit}: the run's texts were not fluent</span>`}
      </div>`)}
      <datalist id="limit">${limit !== null && [-limit, 0, limit].map((one) => html`<option value=${one}>${one}</option>`)}</datalist>
      <p class="note">${limit === null ? "No run says up to which strength texts are fluent." : `The run's texts were fluent up to ${limit}.`}</p>
      <button type="button" disabled=${values.length >= MOST_STRENGTHS} onClick=${() => set({ strengths: [...values, "0.4"].join(",") })}>One more</button>
    </fieldset>`;
  };

  const unique = (items) => [...new Set(items)];
  const Playground = ({ choices }) => {
    const [state, setState] = useState(fromAddress);
    const [texts, setTexts] = useState([]);
    const [status, setStatus] = useState("");
    const stopper = useRef(null);

    // A choice that is not there any more falls back to the best one, so that what is shown is what is asked.
    const completed = (wanted) => {
      const next = { ...wanted };
      next.model ||= choices.models[0] || "";
      const ofModel = choices.directions.filter((one) => one.model === next.model);
      const isOwn = next.concept === OWN;
      if (!isOwn && next.concept) {
        const ofConcept = ofModel.filter((one) => one.concept === next.concept);
        const found =
          ofConcept.find((one) => one.strategy === next.strategy && String(one.layer) === next.layer) ||
          ofConcept.find((one) => one.strategy === next.strategy) || ofConcept[0];
        Object.assign(next, found ? { strategy: found.strategy, layer: String(found.layer), run: found.run } : { concept: "", strategy: "", layer: "", run: "" });
        if (found && next.strengths === BEST)
          next.strengths = String(found.best_strength || Math.min(FIRST_STRENGTH, found.fluent_strength ?? FIRST_STRENGTH));
      }
      if (isOwn && next.strengths === BEST) next.strengths = String(FIRST_STRENGTH);
      if (next.read && next.read !== OWN) {
        const ofRead = ofModel.filter((one) => one.concept === next.read);
        const found = ofRead.find((one) => String(one.layer) === next.read_layer) || ofRead[0];
        Object.assign(next, found ? { read_layer: String(found.layer) } : { read: "", read_layer: "" });
      }
      return next;
    };
    const shown = completed(state);
    const set = (changes) => setState(completed({ ...shown, ...changes }));
    useEffect(() => { toAddress(shown); });
    useEffect(() => {
      const back = () => setState(fromAddress());
      addEventListener("hashchange", back);
      return () => removeEventListener("hashchange", back);
    }, []);

    const ofModel = choices.directions.filter((one) => one.model === shown.model);
    const ofConcept = ofModel.filter((one) => one.concept === shown.concept);
    const concepts = unique(ofModel.map((one) => one.concept));
    const named = ofConcept.find((one) => one.strategy === shown.strategy && String(one.layer) === shown.layer);
    const limit = named?.fluent_strength ?? null;
    const isOwn = shown.concept === OWN;
    const strengths = shown.concept ? [0, ...numbers(shown.strengths).filter(Boolean)] : [0];
    const busy = status === "Generating…";

    const upload = async (event) => {
      const [file] = event.target.files;
      if (!file) return;
      try {
        const query = new URLSearchParams({ model: shown.model, name: file.name });
        const { vectors, size, strength, positions } = await (await ask(`/vector?${query}`, { method: "POST", body: file })).json();
        const layers = vectors.map(({ layer }) => layer).join(","); // "" of a file that names none
        const strengths = String(strength ?? FIRST_STRENGTH);
        set({ concept: OWN, vector: vectors.map(({ id }) => id).join(","), size, positions, strengths, ...(layers && { layer: layers }) });
        setStatus(`Registered ${file.name}${layers ? `, for layer ${layers.replaceAll(",", ", ")}` : "; give its layer"}.`);
      } catch (error) {
        setStatus(`${file.name} cannot be used: ${error.message}`);
      }
    };

    const follow = async (at, strength, signal, change) => {
      const pieces = [];
      try {
        for await (const piece of lines(await post("/text", bodyOf(shown, strength), signal))) {
          if (piece.error) throw new Error(`The text ended early: ${piece.error.message}`);
          pieces.push(piece);
          change(at, { pieces: [...pieces] });
        }
        if (!pieces.at(-1)?.finish_reason) throw new Error("The text ended early: the connection to the console is lost.");
      } catch (error) {
        change(at, { error: error.name === "AbortError" ? "Stopped." : error.message });
        return null;
      }
      return pieces.map((piece) => piece.text).join("");
    };

    const run = async (event) => {
      event.preventDefault();
      stopper.current?.abort();
      const controller = new AbortController();
      stopper.current = controller;
      const started = strengths.map((strength) => ({ strength, pieces: [], error: "", scored: "" }));
      const change = (at, changes) => {
        if (stopper.current !== controller) return; // of an earlier run
        Object.assign(started[at], changes);
        setTexts([...started]);
      };
      setTexts(started);
      setStatus("Generating…");
      const made = await Promise.all(strengths.map((strength, at) => follow(at, strength, controller.signal, change)));
      const whole = made.map((text, at) => [text, at]).filter(([text]) => text?.trim());
      if (shown.concept && !isOwn && whole.length && !controller.signal.aborted) {
        try {
          const asked = { texts: whole.map(([text]) => shown.prompt + text), scorer: shown.concept };
          const { scores, concept } = await (await post("/scores", asked, controller.signal)).json();
          whole.forEach(([, at], number) => change(at, { scored: `scorer ${concept}: ${scores[number].toFixed(3)}` }));
        } catch (error) {
          if (error.name !== "AbortError") whole.forEach(([, at]) => change(at, { scored: `no score: ${error.message}` }));
        }
      }
      if (stopper.current !== controller) return;
      const failed = made.filter((text) => text === null).length;
      setStatus(controller.signal.aborted ? "Stopped." : failed ? `${failed} of ${made.length} texts ended early.` : "Done.");
    };

    const scores = texts.flatMap((text) => tokensOf(text.pieces)).map(([, score]) => score).filter((score) => typeof score === "number");
    const low = Math.min(...scores);
    const range = { low, width: scores.length ? Math.max(...scores) - low : 0 };
    const readLayers = unique(ofModel.filter((one) => one.concept === shown.read).map((one) => one.layer));
    return html`<form class="play" onSubmit=${run}>
      <label class="prompt"><span>Prompt</span><textarea rows="3" dir="auto" value=${shown.prompt} onInput=${(event) => set({ prompt: event.target.value })}></textarea></label>
      <div class="tools">
        <${Choice} name="model" value=${shown.model} options=${unique([shown.model, ...choices.models]).map((one) => [one, one])} onChange=${(model) => set({ model })} />
        <${Choice} name="as" value=${shown.chat} options=${[["", "a text to continue"], ["1", "a message to answer"]]} onChange=${(chat) => set({ chat })} />
        <${Choice} name="steer by" value=${shown.concept} options=${[["", "nothing"], ...concepts.map((one) => [one, one]), [OWN, OWN]]} onChange=${(concept) => set({ concept, strategy: "", strengths: BEST })} />
        ${!isOwn && shown.concept && html`
          <${Choice} name="strategy" value=${shown.strategy} options=${unique(ofConcept.map((one) => one.strategy)).map((one) => [one, one])} onChange=${(strategy) => set({ strategy, strengths: BEST })} />
          <${Choice} name="layer" value=${shown.layer} options=${ofConcept.filter((one) => one.strategy === shown.strategy).map((one) => [String(one.layer), one.layer])} onChange=${(layer) => set({ layer, strengths: BEST })} />`}
        ${isOwn && html`<label><span>file of a vector</span><input type="file" accept=".npy,.safetensors,.gguf,.pt,.json" onChange=${upload} /></label>
          <${Entry} name=${parts(shown.vector).length > 1 ? "its layers" : "its layer"} value=${shown.layer} onChange=${(layer) => set({ layer })} />`}
        <${Choice} name="operation" value=${shown.operation} options=${OPERATIONS.map((one) => [one, one])} onChange=${(operation) => set({ operation })} />
        <${Entry} name="positions: generated, all, prompt, or the first" value=${shown.positions} onChange=${(positions) => set({ positions })} />
        <${Choice} name="read along" value=${shown.read} options=${[["", "nothing"], ...concepts.map((one) => [one, one]), ...(shown.vector ? [[OWN, OWN]] : [])]} onChange=${(read) => set({ read, read_layer: read === OWN ? parts(shown.layer)[0] || "" : "" })} />
        ${shown.read && shown.read !== OWN && html`<${Choice} name="at layer" value=${shown.read_layer} options=${readLayers.map((one) => [String(one), one])} onChange=${(layer) => set({ read_layer: layer })} />`}
        ${shown.read === OWN && html`<${Entry} name="at layer" type="number" min="0" value=${shown.read_layer} onChange=${(layer) => set({ read_layer: layer })} />`}
        <${Entry} name="new tokens" type="number" min="1" max=${choices.max_tokens} value=${shown.max_tokens} onChange=${(one) => set({ max_tokens: one })} />
        <${Entry} name="temperature" type="number" min="0" max="2" step="any" value=${shown.temperature} onChange=${(temperature) => set({ temperature })} />
        <${Entry} name="seed" type="number" min="0" value=${shown.seed} onChange=${(seed) => set({ seed })} />
      </div>
      ${shown.concept && html`<${Strengths} state=${shown} limit=${limit} set=${set} />`}
      ${choices.sensitive.length > 0 && html`<p class="note">Sensitive, with scores of runs only: ${choices.sensitive.join(", ")}.</p>`}
      ${choices.note && html`<p class="note" role="alert">${choices.note}</p>`}
      <div class="tools">
        <button type="submit">${busy ? "Again" : "Generate"}</button>
        <button type="button" disabled=${!busy} onClick=${() => stopper.current?.abort()}>Stop</button>
        <button type="button" onClick=${() => offer("a link", location.href)}>Link</button>
        ${Object.keys(COPIES).map((name) => html`<button type="button" onClick=${() => offer(name, COPIES[name](strengths.map((one) => bodyOf(shown, one)), shown))}>${name}</button>`)}
      </div>
    </form>
    <p role="status">${status}</p>
    <div class="group">${texts.map((text) => html`<${Text} key=${text.strength} text=${text} range=${range} />`)}</div>`;
  };

  root.replaceChildren();
  const show = (node) => render(node, root);
  show(html`<p role="status">Reading what can be chosen…</p>`);
  ask("").then((response) => response.json())
    .then((choices) => show(html`<${Playground} choices=${choices} />`))
    .catch((error) => show(html`<p role="alert">${error.message}</p>`));
})();
