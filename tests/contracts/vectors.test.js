/**
 * The shared vectors, by the contract, by Solidity's own encoding and by ethers.
 * Python's side: `tests/unit/test_escrow_vectors.py`, `tests/unit/test_receipts.py`.
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";

import { events, id, setUp } from "./escrow.js";

const receipts = JSON.parse(readFileSync(new URL("../vectors/receipts.json", import.meta.url), "utf8")).receipts;
const vectors = JSON.parse(readFileSync(new URL("../vectors/escrow.json", import.meta.url), "utf8"));

describe("shared vectors", () => {
  it("encodes the ids of tasks as the vectors have them", async () => {
    const { ethers } = await setUp();
    const encoding = await ethers.deployContract("Encoding");
    for (const vector of vectors.chain_task_ids) {
      const task = "0x" + vector.task.replaceAll("-", "");
      assert.equal(await encoding.chainTaskId(task, BigInt(vector.generation)), vector.id);
    }
  });

  it("chains tasks to the roots that the vectors have", async () => {
    const { ethers } = await setUp();
    const encoding = await ethers.deployContract("Encoding");
    let root = id(0);
    for (const { chain_task, output, reward_wei, root: expected } of vectors.tasks_root) {
      root = await encoding.nextTasksRoot(root, chain_task, output, BigInt(reward_wei));
      assert.equal(root, expected);
    }
  });

  it("digests completions and acceptances as the vectors have them, and recovers who signed", async () => {
    const { ethers } = await setUp();
    const encoding = await ethers.deployContract("Encoding");
    for (const { receipt, result_digest, completion_digest, acceptance_digest } of receipts) {
      const { completion, acceptance } = receipt;
      const { network, generation, fence, worker, payout } = completion;
      const task = "0x" + completion.task.replaceAll("-", "");
      const fields = [network, task, generation, result_digest, fence, worker, payout];
      assert.equal(await encoding.completionDigest(...fields), completion_digest);
      assert.equal(ethers.recoverAddress(completion_digest, completion.signature), worker);
      if (acceptance.ethereum === undefined) continue; // signed by an Ed25519 key, which no contract checks
      const { reward_wei, accepted_at, ethereum } = acceptance;
      const accepted = [completion_digest, reward_wei, accepted_at, ethereum.chain_id, ethereum.contract];
      assert.equal(await encoding.acceptanceDigest(...accepted), acceptance_digest);
      assert.equal(ethers.recoverAddress(acceptance_digest, acceptance.signature), acceptance.signer);
    }
  });

  it("digests vouchers as the vectors have it, and pays them by the vectors' signatures", async () => {
    for (const { requester, worker, cumulative_wei, tasks_root, digest, signature } of vectors.vouchers) {
      const { escrow, address, ...at } = await setUp();
      assert.deepEqual([address, at.requester.address], [vectors.escrow, requester]);
      const cumulative = BigInt(cumulative_wei);
      assert.equal(await escrow.voucherDigest(requester, worker, cumulative, tasks_root), digest);
      await escrow.fund([[worker, 1n]], { value: 1n });
      const [r, vs] = [signature.slice(0, 66), "0x" + signature.slice(66)];
      const voucher = { requester, worker, cumulative, tasksRoot: tasks_root, r, vs };
      assert.deepEqual(await events(escrow, escrow.connect(at.relayer).redeem(voucher)), [
        `ChannelSettled(${requester}, ${worker}, 1, 1, ${cumulative}, ${tasks_root})`,
      ]);
    }
  });
});
