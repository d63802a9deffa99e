/**
 * What each operation costs, at the batch sizes that the root uses: no dearer than what `gas.json` says, by 2 %.
 *
 * Everything is set out anew for each figure, with ids and addresses that are always the same, so that the figures are
 * exact. They are written to `cache/gas.json`; where a change is meant, that file becomes the committed one.
 */
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { before, describe, it } from "node:test";

import { HOUR, id, setUp } from "./escrow.js";

/** Above this a transaction isn't mined at all (EIP-7825). */
const TRANSACTION_CAP = 16_777_216n;
/** The root's gas limit is 1.2 times the estimate and this. */
const LIMIT_ADDED = 80_000n;
/** The root's batch sizes (`rendezvous/chain` uses the same). */
const BATCH = { create: 500, fund: 500, complete: 200, redeem: 150, settle: 150, exit: 1000 };
const TOLERATED = 1.02;
const REWARD = 1_000_000_000_000_000n;
const EVERYTHING = { gasLimit: TRANSACTION_CAP };

const committed = JSON.parse(readFileSync(new URL("gas.json", import.meta.url), "utf8"));

/** Operation → [number of items, what to do with an escrow of its own; the last transaction counts]. */
const OPERATIONS = {
  deploy: [1, async (at) => at.escrow.deploymentTransaction()],
  deposit: [1, async (at) => at.escrow.deposit({ value: REWARD })],
  "create, from the value sent": [1, async (at) => at.escrow.create(at.ids(1)[0], REWARD, at.deadline, { value: REWARD })],
  "create, from the balance": [
    1,
    async (at) => {
      await at.escrow.deposit({ value: 2n * REWARD });
      return at.escrow.create(at.ids(1)[0], REWARD, at.deadline);
    },
  ],
  "complete, a known account": [1, async (at) => at.complete(1, at.known(1))],
  "complete, a new account": [1, async (at) => at.complete(1, at.unknown(1))],
  "complete, failed": [1, async (at) => at.complete(1, at.known(1), false)],
  createBatch: [BATCH.create, async (at) => at.create(BATCH.create)],
  "completeBatch, one worker": [BATCH.complete, async (at) => at.complete(BATCH.complete, at.known(1))],
  "completeBatch, 50 workers": [BATCH.complete, async (at) => at.complete(BATCH.complete, at.known(50))],
  "completeBatch, 500 tasks of 50 workers": [500, async (at) => at.complete(500, at.known(50))],
  "completeBatch, 200 workers": [BATCH.complete, async (at) => at.complete(BATCH.complete, at.known(200))],
  "completeBatch, 200 new accounts": [BATCH.complete, async (at) => at.complete(BATCH.complete, at.unknown(200))],
  "completeBatch, 200 gas burners": [BATCH.complete, async (at) => at.complete(BATCH.complete, at.burners(200))],
  "completeBatch, failed": [BATCH.complete, async (at) => at.complete(BATCH.complete, at.known(1), false)],
  "refund, 200 tasks": [
    BATCH.complete,
    async (at) => {
      await at.create(BATCH.complete);
      await at.warpTo(at.deadline + 1n);
      return at.escrow.refund(at.ids(BATCH.complete), EVERYTHING);
    },
  ],
  "fund, 50 new channels": [50, async (at) => at.fund(at.known(50))],
  "fund, 50 top-ups": [
    50,
    async (at) => {
      await at.fund(at.known(50));
      return at.fund(at.known(50));
    },
  ],
  "fund, 500 new channels": [BATCH.fund, async (at) => at.fund(at.known(BATCH.fund))],
  "redeem": [1, async (at) => at.redeem(at.known(1))],
  "redeemBatch, 50 workers": [50, async (at) => at.redeem(at.known(50))],
  "redeemBatch, 50 new accounts": [50, async (at) => at.redeem(at.unknown(50))],
  "redeemBatch, 150 gas burners": [BATCH.redeem, async (at) => at.redeem(at.burners(BATCH.redeem))],
  "settleBatch, 50 workers": [50, async (at) => at.settle(at.known(50))],
  "settleBatch, 150 gas burners": [BATCH.settle, async (at) => at.settle(at.burners(BATCH.settle))],
  "startExit, 50 channels": [50, async (at) => at.startExit(50)],
  "finishExit, 50 channels": [50, async (at) => at.finishExit(50)],
  "startExit, 1000 channels": [BATCH.exit, async (at) => at.startExit(BATCH.exit)],
  "finishExit, 1000 channels": [BATCH.exit, async (at) => at.finishExit(BATCH.exit)],
  release: [
    1,
    async (at) => {
      await at.fund([at.worker.address]);
      return at.escrow.connect(at.worker).release(at.requester.address);
    },
  ],
};

describe("gas", () => {
  const measured = {};

  before(async () => {
    for (const [name, [items, work]] of Object.entries(OPERATIONS)) {
      const sent = await work(await setting());
      measured[name] = { items, gas: Number((await sent.wait()).gasUsed) };
    }
    mkdirSync("cache", { recursive: true });
    const lines = Object.entries(measured).map((figure) => figure.map((part) => JSON.stringify(part)).join(": "));
    writeFileSync("cache/gas.json", `{\n  ${lines.join(",\n  ")}\n}\n`);
  });

  it("costs no more than what is committed", () => {
    const changed = Object.entries(measured)
      .filter(([name, { items, gas }]) => {
        const then = committed[name];
        return then?.items !== items || gas > then.gas * TOLERATED || gas < then.gas / TOLERATED;
      })
      .map(([name, { gas }]) => `${name}: ${gas} gas, committed ${committed[name]?.gas}`);
    assert.deepEqual(changed, [], "if that is meant: cp cache/gas.json tests/contracts/gas.json");
    assert.deepEqual(Object.keys(committed), Object.keys(measured));
  });

  it("keeps each of the root's batches below the cap of a transaction", () => {
    for (const [name, { gas }] of Object.entries(measured)) {
      assert.ok(BigInt(gas) + LIMIT_ADDED < TRANSACTION_CAP, `${name}: ${gas} gas`);
    }
  });

  it("pays ten thousand tasks of fifty workers for 300 gas a task by vouchers", () => {
    const perTask = (...names) => names.reduce((sum, name) => sum + measured[name].gas, 0) / 10_000;
    assert.ok(perTask("fund, 50 new channels", "redeemBatch, 50 workers") <= 300);
    assert.ok(perTask("fund, 50 new channels", "settleBatch, 50 workers") <= 300);
    assert.ok(perTask("fund, 50 top-ups", "redeemBatch, 50 workers") <= 300);
    assert.ok(perTask("fund, 50 top-ups", "settleBatch, 50 workers") <= 300);
  });
});

/** A chain and an escrow with accounts and ids that are the same each time. */
async function setting() {
  const base = await setUp();
  const { ethers, provider, escrow, voucher, now, warpTo } = base;
  const deadline = (await now()) + 1000n * HOUR;
  const addressOf = (seed) => ethers.getAddress(ethers.id(seed).slice(0, 42));
  const several = (seed, count) => Array.from({ length: count }, (_, index) => addressOf(`${seed} ${index}`));
  const ids = (count) => Array.from({ length: count }, (_, index) => ethers.id(`task ${index}`));
  const burner = await ethers.provider.getCode(await (await ethers.deployContract("GasBurningWorker")).getAddress());

  const at = {
    ...base,
    deadline,
    ids,
    unknown: (count) => several("unknown", count),
    known: (count) => several("known", count),
    burners: (count) => several("burner", count),
    async create(count) {
      return escrow.createBatch(ids(count), REWARD, deadline, { value: BigInt(count) * REWARD, ...EVERYTHING });
    },
    /** Completes as many tasks, an equal share for each worker, sorted. */
    async complete(count, workers, success = true) {
      await prepare(workers);
      await at.create(count);
      if (!success) await escrow.deposit({ value: 1n }); // a root that has paid before has a balance
      const verdicts = ids(count).map((task, index) => [
        task,
        workers[Math.floor((index * workers.length) / count)],
        ethers.id(`output ${index}`),
        success,
      ]);
      return count === 1 ? escrow.complete(...verdicts[0]) : escrow.completeBatch(verdicts, EVERYTHING);
    },
    async fund(workers) {
      const value = BigInt(workers.length) * REWARD;
      return escrow.fund(workers.map((worker) => [worker, REWARD]), { value, ...EVERYTHING });
    },
    async redeem(workers) {
      await open(workers);
      const vouchers = await Promise.all(workers.map((to) => voucher(1n, { to })));
      return vouchers.length === 1 ? escrow.redeem(vouchers[0]) : escrow.redeemBatch(vouchers, EVERYTHING);
    },
    async settle(workers) {
      await open(workers);
      return escrow.settleBatch(workers.map((worker) => [worker, 1n, id(7)]), EVERYTHING);
    },
    async startExit(count) {
      const workers = at.known(count);
      for (let from = 0; from < count; from += BATCH.fund) await at.fund(workers.slice(from, from + BATCH.fund));
      return escrow.startExit(workers, EVERYTHING);
    },
    async finishExit(count) {
      await at.startExit(count);
      await warpTo((await now()) + HOUR);
      return escrow.finishExit(at.known(count), EVERYTHING);
    },
  };

  async function open(workers) {
    await prepare(workers);
    await at.fund(workers);
  }

  /** Accounts become what their names say: known ones hold a wei, burners have code. */
  async function prepare(workers) {
    const burners = new Set(at.burners(BATCH.complete));
    const known = new Set(at.known(BATCH.complete));
    for (const worker of workers) {
      if (burners.has(worker)) await provider.request({ method: "hardhat_setCode", params: [worker, burner] });
      if (known.has(worker)) await provider.request({ method: "hardhat_setBalance", params: [worker, "0x1"] });
    }
  }

  return at;
}
