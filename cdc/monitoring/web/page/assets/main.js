// Receives the server's events, shows each status, and fetches the history for the charts.
import { Chart } from "./chart.js";
import { Flow } from "./flow.js";
import { remedy, showJournal, showSlot, showStores, showTables, showWork } from "./sections.js";
import { inBytes, inRate, inTime, say, state } from "./words.js";

const GRAVITY = ["ok", "idle", "paused", "parked", "behind", "unknown", "stalled", "down"];
const flow = new Flow();
const short = (seconds) => (seconds === 0 ? "0" : seconds < 120 ? `${+seconds.toFixed(1)} s` : seconds < 7200 ? `${+(seconds / 60).toFixed(1)} min` : `${+(seconds / 3600).toFixed(1)} h`);
const charts = {
  lag: new Chart(document.getElementById("chart-lag"), { format: short, least: 4, steps: [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400] }),
  rate: new Chart(document.getElementById("chart-rate"), { format: inRate, least: 10 }),
  slot: new Chart(document.getElementById("chart-slot"), { format: inBytes, least: 1e6, area: true }),
};
let latest = null, heardAt = null, minutes = 60, fetchedAt = -Infinity;

function show(found) {
  latest = found;
  heardAt = performance.now();
  say(document.getElementById("version"), `Tailrace ${found.version}`);
  document.getElementById("leave").hidden = !found.can_act;
  showJournal(found.journal);
  const record = found.record;
  if (!record) return;
  say(document.getElementById("pipeline"), record.prefix);
  showVerdict(record);
  flow.show(record);
  showSlot(record.slot);
  showWork(record);
  showStores(record, { canAct: found.can_act, actions: found.actions, act });
  showTables(record);
  const every = minutes <= 15 ? 2000 : minutes <= 60 ? 5000 : 60000;
  if (performance.now() - fetchedAt > every) fetchHistory();
}

function showVerdict(record) {
  const hops = [["The source", record.source.health], ["The slot", record.slot.health], ["Capture", record.topics.health], ...record.stores.map((store) => [store.name, store.health, store.building && !store.lsn ? "is being built" : null])];
  const worst = hops.reduce((bad, hop) => (GRAVITY.indexOf(hop[1].state) > GRAVITY.indexOf(bad[1].state) ? hop : bad));
  const others = hops.filter((hop) => hop !== worst && GRAVITY.indexOf(hop[1].state) > 2).length;
  const name = worst[1].state, good = name === "ok";
  const word = { idle: "has not started", paused: "is paused", parked: "has parked rows", behind: "is behind", unknown: "is in an unknown state", stalled: "is stalled", down: "is down" }[name];
  const title = good ? "All is well" : `${worst[0]} ${(name === "idle" && worst[2]) || word}`;
  const more = others ? ` ${others === 1 ? "One more hop has" : `${others} more hops have`} a problem.` : "";
  const ages = record.stores.map((store) => store.seconds).filter((seconds) => seconds !== null);
  const oldest = Math.ceil(Math.max(0, ...ages));
  const fine = ages.length ? `Every store has all commits up to ${oldest <= 2 ? "a moment" : inTime(oldest)} ago.` : "Capture publishes every commit.";
  state(document.getElementById("verdict"), name);
  say(document.getElementById("verdict-title"), title);
  say(document.getElementById("verdict-reason"), good ? fine : worst[1].reason + more);
  const line = document.getElementById("verdict-remedy");
  line.hidden = good || !worst[1].remedy;
  if (!line.hidden && line.lastElementChild.textContent !== worst[1].remedy) line.lastElementChild.replaceWith(remedy(worst[1].remedy));
  document.title = good ? "Tailrace: all is well" : `Tailrace: ${title}`;
}

async function fetchHistory() {
  fetchedAt = performance.now();
  const response = await fetch(`/api/history?minutes=${minutes}`).catch(() => null);
  if (!response || !response.ok) return;
  const { times, figures } = await response.json();
  const until = latest?.record?.read_at ?? Date.now() / 1000, since = until - minutes * 60;
  const stores = (latest?.record?.stores ?? []).map((store) => store.name);
  const of = (name) => figures[name] ?? times.map(() => null);
  const perStore = (figure) => stores.map((name, at) => ({ name, colour: 1 + (at % 6), values: of(`${figure}:${name}`) }));
  const limit = latest?.max_seconds ? { value: latest.max_seconds, text: "limit" } : null;
  charts.lag.show({ times, since, until, limit, series: [{ name: "topics", colour: 0, values: of("topics_seconds") }, ...perStore("store_seconds")] });
  charts.rate.show({ times, since, until, limit: null, series: [{ name: "published", colour: 0, values: of("topics_records_per_second") }, ...perStore("store_records_per_second")] });
  const slot = latest?.record?.slot;
  const most = slot?.limit_bytes ? { value: slot.limit_bytes, text: "server's limit" } : null;
  charts.slot.show({ times, since, until, limit: most, series: [{ name: "retained", colour: 1, values: of("slot_retained_bytes") }] });
}

async function act(store, kind) {
  const line = document.getElementById("acting");
  say(line, `${store}: ${kind} …`);
  const response = await fetch(`/api/stores/${encodeURIComponent(store)}/${kind}`, { method: "POST" }).catch(() => null);
  const answer = response ? await response.json() : { error: "the server did not answer" };
  say(line, answer.error ? `${store}: ${answer.error}` : `${store}: ${kind} requested.`);
}

function showLive(alive) {
  const element = document.getElementById("live");
  element.dataset.live = alive ? "yes" : "no";
  const age = heardAt === null ? null : (performance.now() - heardAt) / 1000 + (latest?.age_seconds ?? 0);
  say(document.getElementById("live-text"), alive ? (age === null || age < 6 ? "live" : `${inTime(age)} ago`) : age === null ? "connecting" : `connection lost, ${inTime(age)} old`);
}

document.getElementById("ranges").addEventListener("click", (event) => {
  const chosen = event.target.closest("button");
  if (!chosen) return;
  minutes = Number(chosen.dataset.minutes);
  for (const button of event.currentTarget.children) button.setAttribute("aria-pressed", String(button === chosen));
  fetchHistory();
});

let alive = false;
const events = new EventSource("/api/events");
events.addEventListener("open", () => { alive = true; showLive(alive); });
events.addEventListener("error", () => { alive = false; showLive(alive); });
events.addEventListener("state", (event) => { alive = true; show(JSON.parse(event.data)); showLive(alive); });
setInterval(() => showLive(alive), 1000);
