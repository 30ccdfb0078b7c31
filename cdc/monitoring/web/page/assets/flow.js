// Draws the pipeline: a card for each hop, and lines between them that are animated while records flow.
import { draw, inBytes, inCount, inRate, inTime, keyed, make, say, state } from "./words.js";

const KINDS = { elasticsearch: "Elasticsearch", redis: "Redis", iceberg: "Iceberg" };
const WORDS = { ok: "ok", idle: "nothing yet", paused: "paused", parked: "parked", behind: "behind", unknown: "unknown", stalled: "stalled", down: "down" };

export const wordFor = (name) => WORDS[name] ?? name;
export const storeWord = (store) => (store.health.state === "idle" && store.building ? "being built" : wordFor(store.health.state));

function hopCard(item) {
  return make("li", { class: "hop" },
    make("div", { class: "hop-head" },
      make("span", { class: "hop-name" }, item.name, make("span", { class: "hop-kind", text: item.kind })),
      make("span", { class: "pill" })),
    make("div", { class: "hop-main" }),
    make("div", { class: "hop-more" }));
}

function updateCard(element, item) {
  state(element, item.health.state);
  say(element.querySelector(".pill"), item.word ?? wordFor(item.health.state));
  say(element.querySelector(".hop-main"), item.main);
  say(element.querySelector(".hop-more"), item.more);
}

function behind(seconds) {
  if (seconds === null) return "unknown";
  return seconds < 1 ? "up to date" : `${inTime(seconds)} behind`;
}

export function hopsOf(record) {
  const { source, slot, topics } = record;
  const limit = slot.left_bytes === null ? "the server has no limit" : `${inBytes(slot.left_bytes)} left until it is invalidated`;
  return [
    { key: "source", name: "Source", kind: "Postgres", health: source.health,
      main: source.lsn ?? "no answer", more: source.wal_bytes_per_second === null ? "WAL" : `writes ${inBytes(source.wal_bytes_per_second)} of WAL per second`, rate: source.wal_bytes_per_second },
    { key: "slot", name: "Slot", kind: slot.name, health: slot.health,
      main: slot.exists ? (slot.wal_status === "lost" ? "lost" : `retains ${inBytes(slot.retained_bytes)}`) : "none",
      more: slot.wal_status === "lost" ? (slot.invalidation_reason ?? "invalidated by the server") : slot.seconds_left !== null ? `invalidated in ${inTime(slot.seconds_left)} at this rate` : slot.exists ? limit : "created at the first start", rate: topics.records_per_second },
    { key: "topics", name: "Topics", kind: "Kafka", health: topics.health,
      main: topics.lsn === null ? (topics.state === null ? "nothing yet" : "initial snapshot") : behind(topics.seconds),
      more: `${inRate(topics.records_per_second)} records per second${topics.parked ? `, ${inCount(topics.parked)} rows parked` : ""}`, rate: topics.records_per_second },
  ];
}

export function storeHopsOf(record) {
  return record.stores.map((store) => ({
    key: store.name, name: store.name, kind: KINDS[store.kind] ?? store.kind, health: store.health, word: storeWord(store), rate: store.records_per_second,
    main: store.seconds === null ? (store.building ? `generation ${store.building.generation}` : store.problem ? "no answer" : "nothing yet") : store.problem ? "no answer" : behind(store.seconds),
    more: store.lsn === null ? (store.problem ?? "") : `${store.seconds !== null && store.seconds < 1 ? `${inTime(store.seconds)}, ` : ""}${inCount(store.records)} records left${store.parked ? `, ${inCount(store.parked)} parked` : ""}`,
  }));
}

export class Flow {
  constructor() {
    this.frame = document.getElementById("flow");
    this.wires = document.getElementById("wires");
    this.hops = document.getElementById("hops");
    this.stores = document.getElementById("store-hops");
    this.record = null;
    new ResizeObserver(() => this.connect()).observe(this.frame);
  }

  show(record) {
    this.record = record;
    keyed(this.hops, hopsOf(record), (item) => item.key, hopCard, updateCard);
    keyed(this.stores, storeHopsOf(record), (item) => item.key, hopCard, updateCard);
    this.connect();
  }

  connect() {
    if (!this.record) return;
    const frame = this.frame.getBoundingClientRect();
    const boxes = (parent) => [...parent.children].map((child) => child.getBoundingClientRect());
    const hops = boxes(this.hops), stores = boxes(this.stores);
    const items = [...hopsOf(this.record)], targets = storeHopsOf(this.record);
    const links = [[hops[0], hops[1], items[1]], [hops[1], hops[2], items[2]], ...stores.map((box, at) => [hops[2], box, targets[at]])];
    keyed(this.wires, links.map(([from, to, item], at) => ({ at, from, to, item })), (link) => link.at, () => draw("path"), (path, link) => {
      path.setAttribute("d", curve(link.from, link.to, frame));
      path.setAttribute("class", ["down", "stalled"].includes(link.item.health.state) ? "broken" : link.item.rate > 0.5 ? "flowing" : "");
    });
  }
}

// The line's path. It starts at the right edge if the next card is beside this one, else at the bottom edge.
function curve(from, to, frame) {
  if (to.left >= from.right - 4) {
    const x = from.right - frame.left + 4, y = from.top + from.height / 2 - frame.top;
    const endX = to.left - frame.left - 4, endY = to.top + to.height / 2 - frame.top, middle = (x + endX) / 2;
    return `M${x} ${y} C${middle} ${y} ${middle} ${endY} ${endX} ${endY}`;
  }
  const x = from.left + from.width / 2 - frame.left, y = from.bottom - frame.top + 2;
  const endX = to.left + to.width / 2 - frame.left, endY = to.top - frame.top - 2;
  if (endY - y > 60) return `M${x} ${y} L${x} ${y + 8}`;
  return `M${x} ${y} C${x} ${(y + endY) / 2} ${endX} ${(y + endY) / 2} ${endX} ${endY}`;
}
