"use strict";
const SAMPLES = 120, EVERY = 1000, TREE_EVERY = 2000, MAX_NODES = 150;
const get = (id) => document.getElementById(id);
const count = (n) => Math.round(n).toLocaleString("en");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function make(name, className = "", text = "") {
  const one = document.createElement(name);
  one.className = className;
  one.textContent = text;
  return one;
}

/* The children of `parent` become one element for each item. An element stays while its item's key does, and with it
   the focus and what the user has opened. */
function keep(parent, items, keyOf, create, update) {
  const old = new Map([...parent.children].map((one) => [one.dataset.key, one]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let one = old.get(key);
    old.delete(key);
    if (!one) (one = create(item)).dataset.key = key;
    update(one, item);
    if (one === before) before = before.nextElementSibling;
    else parent.insertBefore(one, before);
  }
  for (const one of old.values()) one.remove();
}

const setText = (one, text) => { if (one.textContent !== text) one.textContent = text; };

// ---- requests ------------------------------------------------------------------------------------------------------

let key = sessionStorage.getItem("banyan-key") || "";

async function request(path, options = {}) {
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  if (response.status === 401) get("key").hidden = false;
  throw Object.assign(new Error(body.error?.message || `status ${response.status}`), { status: response.status });
}

const read = async (path) => (await request(path)).json();

get("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = get("key-text").value.trim();
  sessionStorage.setItem("banyan-key", key);
  get("key").hidden = true;
  get("text").focus();
  begin();
});

get("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
});

// ---- chat ----------------------------------------------------------------------------------------------------------

let model = "", messages = [], asking = null;

function addTurn(who) {
  const turn = make("li"), thought = make("i"), text = make("span");
  turn.append(make("b", "", who), thought, text);
  get("turns").append(turn);
  return { turn, thought, text };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", { value, done } = {}; !done; ) {
    ({ value, done } = await reader.read());
    const lines = (rest + (value ?? "")).split("\n\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
  }
}

async function answer(text) {
  messages.push({ role: "user", content: text });
  addTurn("You").text.textContent = text;
  const { turn, thought, text: out } = addTurn(model), log = get("turns"), began = performance.now();
  let first = 0, usage = null, content = "";
  log.setAttribute("aria-busy", "true"); // a screen reader reads the answer once it is whole
  asking = new AbortController();
  isAsking(true);
  try {
    const body = { model, messages, stream: true, stream_options: { include_usage: true }, temperature: Number(get("temperature").value) };
    const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal: asking.signal };
    for await (const chunk of events(await request("/v1/chat/completions", options))) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const { content: piece, reasoning_content: thinking } = chunk.choices[0]?.delta ?? {};
      if (!piece && !thinking) continue;
      first ||= performance.now();
      thought.textContent += thinking ?? "";
      out.textContent = content += piece ?? "";
      log.scrollTop = log.scrollHeight;
    }
  } catch (error) {
    turn.append(make("small", "error", error.name === "AbortError" ? "stopped" : error.message));
  }
  messages.push({ role: "assistant", content });
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0, ms = (to) => `${count(to - began)} ms`;
    turn.append(make("small", "", `${plural(usage.prompt_tokens, "prompt token")}, ${count(cached)} from the tree; ` +
      `${count(usage.completion_tokens)} generated; first after ${ms(first || performance.now())}, all after ${ms(performance.now())}`));
  }
  log.scrollTop = log.scrollHeight;
  log.removeAttribute("aria-busy");
  asking = null;
  isAsking(false);
}

function isAsking(is) {
  const hadFocus = [get("send"), get("stop")].includes(document.activeElement);
  get("stop").hidden = !(get("send").hidden = is);
  if (hadFocus) get(is ? "stop" : "text").focus();
}

get("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = get("text").value.trim();
  if (!text || asking || !model) return;
  get("text").value = "";
  answer(text);
});
get("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  get("ask").requestSubmit();
});
get("stop").addEventListener("click", () => asking?.abort());
get("clear").addEventListener("click", () => { asking?.abort(); messages = []; get("turns").replaceChildren(); get("text").focus(); });

// ---- figures over time ---------------------------------------------------------------------------------------------

let before = null, history = [];
const CHARTS = {
  "Generated, tokens/s": (s) => s.generated,
  "Computed, tokens/s": (s) => s.computed,
  "From the tree, tokens/s": (s) => s.cached,
  "Batch, tokens a step": (s) => s.batch,
  "Time of a step, ms": (s) => s.stepMs,
  "Hit rate, %": (s) => s.hitRate,
  "Requests running": (s) => s.running,
  "Requests waiting": (s) => s.waiting,
};

const engines = ({ server, replicas }) => `${server.engine_starts} starts, now ${Object.keys(replicas)}`;

/* The rates of `banyan top` (frontend/cli/top.py). A new engine counts from 0 again, and one that goes takes its counts. */
function sample(now) {
  const { engine, cache, server } = now, was = before && engines(before) === engines(now) ? before : null;
  const seconds = was ? server.seconds - was.server.seconds : 0;
  const grown = (part, name) => (was ? now[part][name] - was[part][name] : 0), rate = (n) => (seconds > 0 ? n / seconds : 0);
  const steps = grown("engine", "steps"), queried = grown("cache", "n_query_tokens");
  const all = cache.n_query_tokens ? (100 * cache.n_hit_tokens) / cache.n_query_tokens : 0;
  before = now;
  return {
    generated: rate(grown("engine", "generated_tokens")), computed: rate(grown("engine", "computed_tokens")),
    cached: rate(grown("engine", "cached_tokens")), batch: steps ? grown("engine", "computed_tokens") / steps : 0,
    stepMs: steps ? Math.min(1000 * seconds / steps, 9999) : 0, hitRate: queried ? (100 * grown("cache", "n_hit_tokens")) / queried : all,
    running: engine.running, waiting: engine.waiting,
  };
}

function drawCharts() {
  keep(get("charts"), Object.entries(CHARTS), ([name]) => name, ([name]) => {
    const figure = make("figure"), caption = make("figcaption"), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    caption.append(make("b"), name);
    svg.setAttribute("viewBox", `0 0 ${SAMPLES} 38`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.append(...["polygon", "polyline"].map((name) => document.createElementNS("http://www.w3.org/2000/svg", name)));
    figure.append(caption, svg);
    return figure;
  }, (figure, [name, of]) => {
    const values = history.map(of), most = Math.max(1e-9, ...values), last = values.at(-1) ?? 0, left = SAMPLES - values.length;
    setText(figure.querySelector("b"), last < 10 && last % 1 ? last.toFixed(1) : count(last));
    const points = values.map((value, i) => `${left + i},${(36 - (34 * value) / most).toFixed(1)}`);
    figure.querySelector("polyline").setAttribute("points", points.join(" "));
    figure.querySelector("polygon").setAttribute("points", `${left},38 ${points.join(" ")} ${SAMPLES - 1},38`);
    figure.querySelector("svg").setAttribute("aria-label", `${name}, last ${plural(values.length, "second")}: at most ${most < 10 ? most.toFixed(1) : count(most)}`);
  });
}

function drawPages(cache) {
  const parts = [["used", cache.n_leased, "in use"], ["cached", cache.n_cached, "cached"]];
  setText(get("pages-text"), `${plural(cache.n_pages, "page")}: ${parts.map(([, n, word]) => `${count(n)} ${word}`).join(", ")}, ${count(cache.n_free)} free`);
  keep(get("pages"), parts, ([name]) => name, ([name]) => make("i", name), (one, [, n]) => { one.style.width = `${(100 * n) / cache.n_pages}%`; });
}

// ---- programs ------------------------------------------------------------------------------------------------------

function total(gens) {
  const sum = { cached: 0, computed: 0, drafted: 0, generated: 0 };
  for (const { usage } of gens) {
    if (!usage) continue;
    const { prompt = 0, cached = 0, generated = 0, accepted = 0 } = usage;
    sum.cached += cached; sum.computed += prompt - cached; sum.drafted += accepted; sum.generated += generated - accepted;
  }
  return sum;
}

const said = ({ cached, computed, drafted, generated }) =>
  `${count(cached)} tokens cached, ${count(computed)} computed, ${count(drafted + generated)} generated${drafted ? ` (${count(drafted)} drafted)` : ""}`;

function drawBar(bar, sum) {
  const all = Object.values(sum).reduce((a, b) => a + b, 0);
  keep(bar, Object.entries(sum), ([name]) => name, ([name]) => make("i", name), (one, [, n]) => { one.style.width = `${all ? (100 * n) / all : 0}%`; });
}

function drawBranch(one, { branch, children, gens }) {
  const own = gens.get(branch.number) ?? [], [facts, bar, below] = one.children;
  const names = own.slice(-12).map((gen) => (gen.name || gen.kind) + (gen.usage ? "" : " (failed)"));
  if (branch.doing) names.push(`${branch.doing} …`);
  one.classList.toggle("busy", !!branch.doing);
  const text = own.length ? `: ${said(total(own))}` : "";
  setText(facts, `${branch.number ? `Branch ${branch.number}` : "Main branch"}${names.length ? ` — ${names.join(", ")}` : ""}${text}`);
  bar.hidden = !own.length;
  drawBar(bar, total(own));
  const items = (children.get(branch.number) ?? []).map((child) => ({ branch: child, children, gens }));
  keep(below, items, (item) => item.branch.number, newBranch, drawBranch);
}

function newBranch() {
  const one = make("li", "branch"), bar = make("div", "bar");
  bar.setAttribute("aria-hidden", "true");
  one.append(make("div"), bar, make("ul"));
  return one;
}

const group = (items, of) => items.reduce((found, item) => found.set(of(item), [...(found.get(of(item)) ?? []), item]), new Map());

function drawPrograms({ running, ended, n_running: n, n_idle: nIdle }) {
  const all = [...running, ...ended];
  setText(get("programs-title"), `Programs (${count(n)} running${nIdle ? `, ${count(nIdle)} idle` : ""})`);
  get("no-programs").hidden = all.length > 0;
  keep(get("running"), all, (program) => program.serial, () => {
    const one = make("li"), details = make("details"), summary = make("summary");
    summary.append(make("b"), " ", make("small"), make("small", "said"), make("span", "bar"));
    summary.lastChild.setAttribute("aria-hidden", "true");
    details.append(summary, make("ul"));
    one.append(details);
    return one;
  }, (one, program) => {
    const { serial, name, seconds, branches, gens, is_over: isOver, error, n_branches: nBranches } = program;
    const doing = branches.filter((branch) => branch.doing).length, sum = total(gens), [title, state, text, bar] = one.querySelector("summary").children;
    const now = doing ? `runs for ${seconds.toFixed(1)} s, now ${plural(doing, "gen")}` : `idle, ${seconds.toFixed(1)} s old`;
    setText(title, `${name || "program"} #${serial}`);
    setText(state, `${error ? `failed: ${error}` : isOver ? `ended after ${seconds.toFixed(2)} s` : now}; ${count(nBranches)} ${nBranches === 1 ? "branch" : "branches"}`);
    setText(text, gens.length ? said(sum) : "no gen has ended");
    drawBar(bar, sum);
    const children = group(branches, (branch) => branch.parent), byBranch = group(gens, (gen) => gen.state);
    const roots = (children.get(-1) ?? []).map((branch) => ({ branch, children, gens: byBranch }));
    keep(one.querySelector("ul"), roots, (item) => item.branch.number, newBranch, drawBranch);
  });
  return new Map(all.map((program) => [program.serial, program.name]));
}

// ---- the tree ------------------------------------------------------------------------------------------------------

function tags(node, names) {
  const found = [plural(node.n_tokens, "token")];
  if (node.n_locks) found.push(`leased by ${plural(node.n_locks, "request")}${node.owners.length ? `: ${[...new Set(node.owners.map(([, serial]) => `${names.get(serial) || "program"} #${serial}`))].join(", ")}` : ""}`);
  if (node.children.length > 1) found.push(`shared by ${count(node.children.length)} branches`);
  if (node.is_pinned) found.push("pinned");
  if (node.is_expected) found.push("expected again");
  if (!node.n_pages && node.n_host) found.push("in host memory");
  if (node.n_folded) found.push(`+ ${plural(node.n_folded, "node")} below`);
  return found;
}

function showText(one, text) {
  if (one.textContent === text) return; // control tokens are told from text
  one.replaceChildren(...text.split(/(<\|\w+\|>)/).map((part, i) => (i % 2 ? make("span", "control", part) : part)));
}

function drawNodes(parent, nodes, names) {
  const seen = new Map(), keyed = nodes.map((node) => {
    const start = node.text.slice(0, 24), n = seen.get(start) ?? 0;
    seen.set(start, n + 1);
    return { node, key: `${n} ${start}` };
  });
  keep(parent, keyed, (item) => item.key, () => {
    const one = make("li"), facts = make("div", "node");
    facts.append(make("code"), make("span", "facts"));
    one.append(facts, make("ul"));
    return one;
  }, (one, { node }) => {
    const [facts, below] = one.children;
    one.className = node.n_locks ? "used" : "";
    showText(facts.children[0], node.parent < 0 ? node.namespace || "root" : node.text.replaceAll("\n", "⏎") + (node.n_tokens > node.n_shown ? "…" : ""));
    setText(facts.children[1], node.parent < 0 ? "" : tags(node, names).join(" · "));
    if (node.children.length) drawNodes(below, node.children, names);
    else below.replaceChildren();
  });
}

function drawTree(tree, names) {
  const nodes = tree.nodes.map((node) => ({ ...node, children: [] }));
  for (const node of nodes) nodes[node.parent]?.children.push(node);
  const shown = nodes.filter((node) => node.parent >= 0).length;
  get("tree-key").hidden = !shown;
  setText(get("tree-text"), !shown ? "Nothing is cached yet." : `${plural(tree.n_nodes, "node")}${shown < tree.n_nodes ? `, the largest ${count(shown)} shown` : ""}; a page is ${tree.page} tokens.`);
  drawNodes(get("nodes"), nodes.filter((node) => node.parent < 0), names);
}

// ---- the loop ------------------------------------------------------------------------------------------------------

function setStatus(text, isBad = false) {
  setText(get("status"), text); // a change is read aloud, so figures are not part of it
  get("status").className = isBad ? "bad" : "";
}

let treeDue = 0, timer = 0;

async function update() {
  try {
    drawLinks((await read("/v1/pages")).data);
    const [stats, programs] = await Promise.all([read("/v1/stats"), read("/v1/programs")]);
    history = [...history, sample(stats)].slice(-SAMPLES);
    drawCharts();
    drawPages(stats.cache);
    const names = drawPrograms(programs);
    if (performance.now() >= treeDue) {
      treeDue = performance.now() + TREE_EVERY;
      drawTree(await read(`/v1/tree?limit=${MAX_NODES}`), names);
    }
    setStatus("connected");
  } catch (error) {
    setStatus(error.status === 403 ? "the figures are for operators; the chat works" : error.message, error.status !== 403);
    if (error.status === 401 || error.status === 403) return; // until there is another key
  }
  clearTimeout(timer); // another update may have ended meanwhile: the page was hidden and shown
  timer = setTimeout(update, EVERY);
}

function drawLinks(pages) {
  get("links-title").hidden = !pages.length;
  keep(get("links"), pages, (page) => page.id, () => { const one = make("li"); one.append(make("a")); return one; }, (one, page) => {
    one.firstChild.href = `/pages/${page.id}`;
    setText(one.firstChild, page.title);
  });
}

async function begin() {
  clearTimeout(timer);
  try {
    model = (await read("/v1/models")).data[0].id;
    setText(get("model"), model);
    document.title = `${model} on Banyan`;
  } catch (error) {
    setStatus(error.message, true);
    if (error.status !== 401) timer = setTimeout(begin, EVERY);
    return;
  }
  update();
}

setText(get("how"), `bn.set_default_backend(bn.connect("${location.origin}"))`);
document.addEventListener("visibilitychange", () => { clearTimeout(timer); if (!document.hidden) begin(); });
begin();
