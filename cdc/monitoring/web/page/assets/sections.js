// Shows the sections below the charts: the slot, snapshots and builds, the stores, recent problems, the tables.
import { storeWord, wordFor } from "./flow.js";
import { atTime, inBytes, inCount, inRate, inTime, keyed, make, say, state } from "./words.js";

const KINDS = { elasticsearch: "Elasticsearch", redis: "Redis", iceberg: "Iceberg" };

export function showSlot(slot) {
  const parent = document.getElementById("slot");
  keyed(parent, [slot], () => "slot", () => make("div", {},
    make("p", { class: "big" }),
    make("div", { class: "meter", role: "meter", "aria-label": "Share of the limit", "aria-valuemin": "0", "aria-valuemax": "100" }, make("span")),
    make("p", { class: "why", hidden: true }),
    make("dl", { class: "facts" })), (element) => {
    state(element, slot.health.state);
    say(element.querySelector(".big"), headline(slot));
    const meter = element.querySelector(".meter"), used = slot.wal_status === "lost" ? 100 : slot.used_percent;
    meter.hidden = used === null;
    meter.setAttribute("aria-valuenow", Math.round(used ?? 0));
    meter.firstElementChild.style.width = `${used ?? 0}%`;
    explain(element.querySelector(".why"), slot.health);
    facts(element.querySelector("dl"), [
      ["Name", slot.name],
      ["Retained WAL", inBytes(slot.retained_bytes)],
      ["Not confirmed", inBytes(slot.bytes)],
      ["Left until invalidated", slot.left_bytes === null ? "no limit" : inBytes(slot.left_bytes)],
      ["Status", [slot.wal_status ?? "unknown", slot.active ? "active" : "not active"].join(", ")],
      ["Confirmed up to", slot.confirmed ?? "unknown"],
    ]);
  });
}

function headline(slot) {
  if (!slot.exists) return "The slot does not exist";
  if (slot.wal_status === "lost") return "The slot is invalidated";
  if (slot.seconds_left !== null) return `Invalidated in ${inTime(slot.seconds_left)} at the current rate`;
  if (slot.used_percent !== null) return `${slot.used_percent < 10 ? slot.used_percent.toFixed(1) : Math.round(slot.used_percent)} % of its limit, and not growing`;
  return "No limit on the server";
}

export function showWork(record) {
  const copies = record.snapshots.map((copy) => ({
    key: `copy ${copy.id}`, title: copy.kind === "first" ? "Initial snapshot" : "Incremental snapshot",
    share: copy.total_bytes ? copy.size_bytes / copy.total_bytes : null,
    text: `${inCount(copy.rows)} rows, ${inRate(copy.rows_per_second)} rows per second`, left: copy.seconds_left, began: copy.began,
  }));
  const builds = record.stores.filter((store) => store.building).map(({ name, building }) => ({
    key: `build ${name}`, title: `Bootstrap of ${name}, generation ${building.generation}`,
    share: building.total_records ? building.records / building.total_records : null,
    text: building.records === null ? "in progress" : `${inCount(building.records)} of ${inCount(building.total_records)} records`, left: building.seconds_left, began: building.began,
  }));
  const items = [...copies, ...builds];
  const parent = document.getElementById("work");
  keyed(parent, items.length ? items : [{ key: "none" }], (item) => item.key, (item) => item.key === "none"
    ? make("p", { class: "empty", text: "No snapshot or build is in progress." })
    : make("div", { class: "work" }, make("b", { text: item.title }), make("div", { class: "meter", role: "progressbar", "aria-label": item.title }, make("span")), make("p", { class: "muted" })), (element, item) => {
    if (item.key === "none") return;
    const meter = element.querySelector(".meter");
    meter.hidden = item.share === null;
    meter.setAttribute("aria-valuenow", Math.round(100 * (item.share ?? 0)));
    meter.firstElementChild.style.width = `${100 * (item.share ?? 0)}%`;
    const percent = item.share === null ? "" : `${Math.floor(100 * item.share)} %, `;
    say(element.querySelector("p"), `${percent}${item.text}${item.left === null || item.left === undefined ? `, since ${atTime(item.began)}` : `, ${inTime(item.left)} left`}`);
  });
}

export function showStores(record, { canAct, actions, act }) {
  keyed(document.getElementById("stores"), record.stores, (store) => store.name, (store) => make("article", { class: "panel store", "aria-label": `Store ${store.name}` },
    make("header", {}, make("h3", {}, store.name, " ", make("span", { class: "muted hop-kind", text: KINDS[store.kind] ?? store.kind })), make("span", { class: "pill" })),
    make("p", { class: "why", hidden: true }),
    make("dl", { class: "facts" }),
    make("div", { class: "buttons" },
      make("button", { "data-kind": "pause", onclick: (event) => act(store.name, event.target.dataset.kind) }),
      make("button", { "data-kind": "audit", text: "Audit", onclick: () => act(store.name, "audit") }),
      make("button", { "data-kind": "retry-parked", text: "Retry parked", onclick: () => act(store.name, "retry-parked") }))), (element, store) => {
    state(element, store.health.state);
    say(element.querySelector(".pill"), storeWord(store));
    explain(element.querySelector(".why"), store.health);
    facts(element.querySelector("dl"), storeFacts(store));
    const [pause, audit, retry] = element.querySelectorAll("button");
    const busy = (kind) => actions.some((each) => each.store === store.name && each.kind === kind && each.exit_code === null);
    pause.dataset.kind = store.paused ? "resume" : "pause";
    say(pause, store.paused ? "Resume" : "Pause");
    say(audit, busy("audit") ? "Auditing …" : "Audit");
    say(retry, busy("retry-parked") ? "Retrying …" : "Retry parked");
    pause.disabled = !canAct;
    audit.disabled = !canAct || busy("audit");
    retry.disabled = !canAct || !store.parked || busy("retry-parked");
    for (const button of [pause, audit, retry]) button.title = canAct ? "" : "Needs [dashboard] token in the config";
  });
}

function storeFacts(store) {
  const audit = store.audit;
  return [
    ["Position", store.lsn ?? "serves no data yet"],
    ["Lag", store.seconds === null ? "unknown" : `${inTime(store.seconds)}, ${inBytes(store.bytes)}`],
    ["Records left", inCount(store.records)],
    ["Complete up to", store.applied_until === null ? "unknown" : atTime(store.applied_until)],
    ["Applies", store.records_per_second === null ? "unknown" : `${inRate(store.records_per_second)} records per second`],
    ["Parked rows", inCount(store.parked)],
    ["Generation", store.generation === null ? "none" : String(store.generation)],
    ["Last audit", audit === null ? "never" : `${atTime(audit.ended)}, ${audit.differences ? `${inCount(audit.differences)} differ` : audit.verdict === "equal" ? "no difference" : audit.verdict}`],
  ];
}

function facts(list, rows) {
  keyed(list, rows.flatMap(([name, value]) => [{ tag: "dt", name, text: name }, { tag: "dd", name, text: value }]), (item) => `${item.tag} ${item.name}`, (item) => make(item.tag), (element, item) => say(element, item.text));
}

// Shows a remedy that is a command as code, and any other remedy as text.
export function remedy(text) {
  return /^tailrace [^.]*$/.test(text) ? make("code", { text }) : make("span", { text });
}

function explain(element, health) {
  element.hidden = !health.reason;
  const said = `${health.reason}|${health.remedy}`;
  if (element.dataset.said === said) return;
  element.dataset.said = said;
  element.replaceChildren(health.reason, ...(health.remedy ? [make("span", { class: "remedy" }, "What to do: ", remedy(health.remedy))] : []));
}

export function showJournal(entries) {
  const shown = entries.slice(0, 12);
  keyed(document.getElementById("journal"), shown.length ? shown : [null], (entry) => (entry ? `${entry.name} ${entry.began}` : "none"), (entry) => entry
    ? make("li", {}, make("span", {}, make("span", { class: "pill" })), make("p", {}), make("span", { class: "when" }))
    : make("li", { class: "none" }, make("p", { class: "empty", text: "No recent problems." })), (element, entry) => {
    if (!entry) return;
    state(element, entry.ended === null ? entry.state : "idle");
    element.classList.toggle("over", entry.ended !== null);
    say(element.querySelector(".pill"), entry.ended === null ? wordFor(entry.state) : "ended");
    const said = `${entry.reason}|${entry.remedy}`, text = element.querySelector("p");
    if (text.dataset.said !== said) {
      text.dataset.said = said;
      text.replaceChildren(make("b", { text: entry.where }), `: ${entry.reason}`, ...(entry.remedy ? [make("span", { class: "remedy" }, "What to do: ", remedy(entry.remedy))] : []));
    }
    say(element.querySelector(".when"), entry.ended === null ? `since ${atTime(entry.began)}` : `${atTime(entry.began)}, for ${inTime(entry.ended - entry.began)}`);
  });
}

export function showTables(record) {
  const names = record.stores.map((store) => store.name);
  keyed(document.querySelector("#tables tbody"), record.tables, (table) => table.topic, (table) => make("tr", {},
    make("td", {}, make("b", { text: table.name }), make("div", { class: "incomplete", hidden: true })),
    make("td", { class: "number" }), make("td", { class: "number" }), make("td", {}, make("div", { class: "parts" }))), (row, table) => {
    const [name, rate, total, parts] = row.children;
    const warning = name.querySelector(".incomplete");
    const said = [table.incomplete ? `incomplete: ${table.incomplete}` : "", table.parked ? `${inCount(table.parked)} rows parked` : ""].filter(Boolean);
    warning.hidden = !said.length;
    say(warning, said.join("; "));
    say(rate, inRate(table.records_per_second));
    say(total, inCount(table.partitions.reduce((sum, each) => sum + each.end, 0)));
    keyed(parts.firstElementChild, table.partitions, (each) => each.number, () => make("span"), (element, each) => {
      const left = names.filter((store) => store in each.applied && each.applied[store] < each.end).map((store) => `${store} ${inCount(each.end - each.applied[store])}`);
      say(element, `${each.number}: ${inCount(each.end)}${left.length ? ` (${left.join(", ")} left)` : ""}`);
    });
  });
}
