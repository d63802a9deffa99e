import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { DELAY, HOUR, events, id, refusal, seen, setUp } from "./escrow.js";

const NOBODY = "0x0000000000000000000000000000000000000000";
const OUTPUT = id(0xbeef);

describe("free balances", () => {
  it("credits a deposit and pays it out to whom the owner says", async () => {
    const { ethers, escrow, requester, other } = await setUp();
    assert.deepEqual(await events(escrow, escrow.deposit({ value: 10n })), [`Deposited(${requester.address}, 10)`]);
    const before = await ethers.provider.getBalance(other.address);
    assert.deepEqual(await events(escrow, escrow.withdraw(other.address, 4n)), [
      `Withdrawn(${requester.address}, ${other.address}, 4)`,
    ]);
    assert.equal((await ethers.provider.getBalance(other.address)) - before, 4n);
    assert.equal(await escrow.balanceOf(requester.address), 6n);
  });

  it("refuses nothing, nobody, and more than there is", async () => {
    const { escrow, other } = await setUp();
    assert.equal(await refusal(escrow, escrow.deposit({ value: 0n })), "ZeroAmount()");
    assert.equal(await refusal(escrow, escrow.withdraw(other.address, 0n)), "ZeroAmount()");
    assert.equal(await refusal(escrow, escrow.withdraw(NOBODY, 1n)), "ZeroAddress()");
    assert.equal(await refusal(escrow, escrow.withdraw(other.address, 1n)), "InsufficientBalance(0, 1)");
  });

  it("keeps the balance when the receiver rejects ether", async () => {
    const { ethers, escrow, requester } = await setUp();
    const rejecting = await ethers.deployContract("RejectingWorker");
    await escrow.deposit({ value: 5n });
    const to = await rejecting.getAddress();
    assert.equal(await refusal(escrow, escrow.withdraw(to, 5n)), `WithdrawFailed(${to})`);
    assert.equal(await escrow.balanceOf(requester.address), 5n);
  });

  it("takes no plain transfer", async () => {
    const { address, requester } = await setUp();
    await assert.rejects(requester.sendTransaction({ to: address, value: 1n }));
  });

  it("refuses an exit delay outside a minute and thirty days", async () => {
    const { ethers, escrow } = await setUp();
    const factory = await ethers.getContractFactory("TaskEscrow");
    assert.equal(await refusal(escrow, deploying(factory, 59n)), "BadExitDelay(59)");
    assert.equal(await refusal(escrow, deploying(factory, 30n * 86400n + 1n)), `BadExitDelay(${30 * 86400 + 1})`);
    await deploying(factory, 60n);
    await deploying(factory, 30n * 86400n);
  });
});

describe("path A: a reward per task", () => {
  it("funds a task from the value sent, or from the balance", async () => {
    const { escrow, requester, now } = await setUp();
    const deadline = (await now()) + HOUR;
    assert.deepEqual(await events(escrow, escrow.create(id(1), 10n, deadline, { value: 10n })), [
      `Deposited(${requester.address}, 10)`,
      `TaskCreated(${requester.address}, ${id(1)}, 10, ${deadline})`,
    ]);
    await escrow.deposit({ value: 7n });
    await escrow.create(id(2), 10n, deadline, { value: 4n });
    assert.equal(await escrow.balanceOf(requester.address), 1n);
    const [reward, stored, state] = await escrow.taskOf(requester.address, id(2));
    assert.deepEqual([reward, stored, state], [10n, deadline, 1n]);
  });

  it("refuses a task it can't fund, or that is there already", async () => {
    const { escrow, now } = await setUp();
    const deadline = (await now()) + HOUR;
    assert.equal(await refusal(escrow, escrow.create(id(1), 10n, deadline, { value: 11n })), "ExcessValue(11, 10)");
    assert.equal(await refusal(escrow, escrow.create(id(1), 10n, deadline, { value: 3n })), "InsufficientBalance(0, 7)");
    assert.equal(await refusal(escrow, escrow.create(id(1), 0n, deadline)), "ZeroAmount()");
    const past = await now();
    assert.equal(await refusal(escrow, escrow.create(id(1), 1n, past, { value: 1n })), `DeadlinePassed(${past})`);
    await escrow.create(id(1), 1n, deadline, { value: 1n });
    assert.equal(await refusal(escrow, escrow.create(id(1), 1n, deadline, { value: 1n })), `TaskExists(${id(1)})`);
  });

  it("leaves one requester's ids to it alone", async () => {
    const { escrow, other, now } = await setUp();
    const deadline = (await now()) + HOUR;
    await escrow.create(id(1), 1n, deadline, { value: 1n });
    await escrow.connect(other).create(id(1), 2n, deadline, { value: 2n });
    assert.equal((await escrow.taskOf(other.address, id(1)))[0], 2n);
  });

  it("funds many at once", async () => {
    const { escrow, requester, now } = await setUp();
    const deadline = (await now()) + HOUR;
    assert.deepEqual(await events(escrow, escrow.createBatch([id(1), id(2)], 5n, deadline, { value: 10n })), [
      `Deposited(${requester.address}, 10)`,
      `TaskCreated(${requester.address}, ${id(1)}, 5, ${deadline})`,
      `TaskCreated(${requester.address}, ${id(2)}, 5, ${deadline})`,
    ]);
    assert.equal(await refusal(escrow, escrow.createBatch([], 5n, deadline)), "ZeroAmount()");
    assert.equal(
      await refusal(escrow, escrow.createBatch([id(3), id(3)], 5n, deadline, { value: 10n })),
      `TaskExists(${id(3)})`,
    );
  });

  it("pays a completed task once, after its deadline too", async () => {
    const { ethers, escrow, requester, worker, now, warpTo } = await setUp();
    const deadline = (await now()) + HOUR;
    await escrow.create(id(1), 10n, deadline, { value: 10n });
    await warpTo(deadline + 10n);
    const before = await ethers.provider.getBalance(worker.address);
    assert.deepEqual(await events(escrow, escrow.complete(id(1), worker.address, OUTPUT, true)), [
      `TaskCompleted(${requester.address}, ${id(1)}, ${worker.address}, 10, ${OUTPUT})`,
    ]);
    assert.equal((await ethers.provider.getBalance(worker.address)) - before, 10n);
    assert.equal(await refusal(escrow, escrow.complete(id(1), worker.address, OUTPUT, true)), `TaskNotOpen(${id(1)})`);
    assert.equal(await refusal(escrow, escrow.refund([id(1)])), `TaskNotOpen(${id(1)})`);
  });

  it("returns the reward of a failed task to the requester's balance", async () => {
    const { escrow, requester, now } = await setUp();
    await escrow.create(id(1), 10n, (await now()) + HOUR, { value: 10n });
    assert.deepEqual(await events(escrow, escrow.complete(id(1), NOBODY, OUTPUT, false)), [
      `TaskFailed(${requester.address}, ${id(1)}, ${NOBODY}, 10, ${OUTPUT})`,
    ]);
    assert.equal(await escrow.balanceOf(requester.address), 10n);
  });

  it("refuses to complete for nobody, or another requester's task", async () => {
    const { escrow, other, worker, now } = await setUp();
    await escrow.create(id(1), 10n, (await now()) + HOUR, { value: 10n });
    assert.equal(await refusal(escrow, escrow.complete(id(1), NOBODY, OUTPUT, true)), "ZeroAddress()");
    assert.equal(
      await refusal(escrow, escrow.connect(other).complete(id(1), worker.address, OUTPUT, true)),
      `TaskNotOpen(${id(1)})`,
    );
  });

  it("nets consecutive completions of one worker and credits the failures", async () => {
    const { ethers, escrow, requester, worker, other, now } = await setUp();
    await escrow.createBatch([1, 2, 3, 4].map(id), 5n, (await now()) + HOUR, { value: 20n });
    const before = [await ethers.provider.getBalance(worker.address), await ethers.provider.getBalance(other.address)];
    await escrow.completeBatch([
      [id(1), worker.address, OUTPUT, true],
      [id(2), worker.address, OUTPUT, true],
      [id(3), NOBODY, OUTPUT, false],
      [id(4), other.address, OUTPUT, true],
    ]);
    assert.equal((await ethers.provider.getBalance(worker.address)) - before[0], 10n);
    assert.equal((await ethers.provider.getBalance(other.address)) - before[1], 5n);
    assert.equal(await escrow.balanceOf(requester.address), 5n);
  });

  it("reverts a whole batch for one wrong id and says which", async () => {
    const { escrow, worker, now } = await setUp();
    await escrow.create(id(1), 5n, (await now()) + HOUR, { value: 5n });
    const batch = [
      [id(1), worker.address, OUTPUT, true],
      [id(2), worker.address, OUTPUT, true],
    ];
    assert.equal(await refusal(escrow, escrow.completeBatch(batch)), `TaskNotOpen(${id(2)})`);
    assert.equal((await escrow.taskOf((await escrow.runner).address, id(1)))[2], 1n);
  });

  it("gives nothing back before the deadline has passed", async () => {
    const { escrow, requester, now, warpTo } = await setUp();
    const deadline = (await now()) + HOUR;
    await escrow.create(id(1), 10n, deadline, { value: 10n });
    assert.equal(await refusal(escrow, escrow.refund([id(1)])), `DeadlineNotPassed(${id(1)}, ${deadline})`);
    await warpTo(deadline + 1n);
    assert.deepEqual(await events(escrow, escrow.refund([id(1)])), [
      `TaskRefunded(${requester.address}, ${id(1)}, 10)`,
    ]);
    assert.equal(await escrow.balanceOf(requester.address), 10n);
    assert.equal(await refusal(escrow, escrow.create(id(1), 1n, deadline + HOUR, { value: 1n })), `TaskExists(${id(1)})`);
  });

  it("credits a payee that rejects, and one that burns all its gas", async () => {
    const { ethers, escrow, now, other } = await setUp();
    for (const [number, name] of [
      [1, "RejectingWorker"],
      [2, "GasBurningWorker"],
    ]) {
      const payee = await (await ethers.deployContract(name)).getAddress();
      await escrow.create(id(number), 10n, (await now()) + HOUR, { value: 10n });
      const said = await events(escrow, escrow.complete(id(number), payee, OUTPUT, true));
      assert.equal(said.at(-1), `PushFailed(${payee}, 10)`);
      assert.equal(await escrow.balanceOf(payee), 10n);
    }
    const rejecting = await ethers.deployContract("RejectingWorker");
    await escrow.create(id(3), 10n, (await now()) + HOUR, { value: 10n });
    await escrow.complete(id(3), await rejecting.getAddress(), OUTPUT, true);
    const before = await ethers.provider.getBalance(other.address);
    await rejecting.takeCredit(await escrow.getAddress(), other.address, 10n);
    assert.equal((await ethers.provider.getBalance(other.address)) - before, 10n);
  });

  it("lets no payee back in while it is paid, by any function", async () => {
    const { ethers, escrow, now } = await setUp();
    const payee = await ethers.deployContract("ReenteringWorker", [await escrow.getAddress()]);
    const to = await payee.getAddress();
    await escrow.create(id(1), 10n, (await now()) + HOUR, { value: 10n });
    await escrow.complete(id(1), to, OUTPUT, true);
    await escrow.deposit({ value: 5n });
    await escrow.withdraw(to, 5n);
    assert.equal(await ethers.provider.getBalance(to), 15n);
    assert.equal(await payee.reentries(), 0n);
  });

  it("reverts at a gas limit too low to give the payee its stipend, however a relayer chooses it", async () => {
    const { ethers, escrow, relayer, voucher } = await setUp();
    const payee = await ethers.deployContract("HungryWorker");
    const to = await payee.getAddress();
    await escrow.fund([[to, 1000n]], { value: 1000n });
    // It has credit already, so that crediting what a starved push failed to pay would be cheap.
    await payee.need(40_000n);
    await escrow.redeem(await voucher(1n, { to }));
    assert.equal(await escrow.balanceOf(to), 1n);
    await payee.need(27_000n); // nearly all of the stipend
    let cumulative = 1n;
    const outcomes = new Set();
    for (let gasLimit = 70_000n; gasLimit <= 150_000n; gasLimit += 1_000n) {
      cumulative += 1n;
      const held = await ethers.provider.getBalance(to);
      try {
        await (await escrow.connect(relayer).redeem(await voucher(cumulative, { to }), { gasLimit })).wait();
        outcomes.add("paid");
        assert.equal((await ethers.provider.getBalance(to)) > held, true, `at ${gasLimit} gas the payment was diverted`);
      } catch (fault) {
        if (fault.code === "ERR_ASSERTION") throw fault;
        outcomes.add("reverted");
      }
    }
    assert.deepEqual([...outcomes].sort(), ["paid", "reverted"]);
    assert.equal(await escrow.balanceOf(to), 1n);
    const starved = escrow.redeem.staticCall(await voucher(cumulative + 1n, { to }), { gasLimit: 90_000n });
    assert.equal(await refusal(escrow, starved), "PushGasTooLow()");
  });
});

describe("path B: vouchers on a locked channel", () => {
  it("locks, redeems by anyone, and pays the worker alone", async () => {
    const { ethers, escrow, requester, worker, relayer, voucher } = await setUp();
    assert.deepEqual(await events(escrow, escrow.fund([[worker.address, 100n]], { value: 100n })), [
      `ChannelFunded(${requester.address}, ${worker.address}, 100)`,
      `Deposited(${requester.address}, 100)`,
    ]);
    const before = await ethers.provider.getBalance(worker.address);
    assert.deepEqual(await events(escrow, escrow.connect(relayer).redeem(await voucher(30n))), [
      `ChannelSettled(${requester.address}, ${worker.address}, 30, 30, 30, ${id(7)})`,
    ]);
    assert.equal((await ethers.provider.getBalance(worker.address)) - before, 30n);
    const [locked, settled, exitAt] = await escrow.channelOf(requester.address, worker.address);
    assert.deepEqual([locked, settled, exitAt], [70n, 30n, 0n]);
  });

  it("refuses to fund nobody or nothing", async () => {
    const { escrow, worker } = await setUp();
    assert.equal(await refusal(escrow, escrow.fund([[NOBODY, 1n]], { value: 1n })), "ZeroAddress()");
    assert.equal(await refusal(escrow, escrow.fund([[worker.address, 0n]])), "ZeroAmount()");
    assert.equal(await refusal(escrow, escrow.fund([])), "ZeroAmount()");
    assert.equal(await refusal(escrow, escrow.fund([[worker.address, 1n]], { value: 2n })), "ExcessValue(2, 1)");
  });

  it("refuses a replayed, stale, forged or foreign voucher", async () => {
    const { escrow, requester, worker, other, voucher } = await setUp();
    await escrow.fund([[worker.address, 100n]], { value: 100n });
    const good = await voucher(30n);
    await escrow.redeem(good);
    assert.equal(await refusal(escrow, escrow.redeem(good)), `NothingDue(${requester.address}, ${worker.address})`);
    assert.equal(
      await refusal(escrow, escrow.redeem(await voucher(20n))),
      `NothingDue(${requester.address}, ${worker.address})`,
    );
    assert.equal(
      await refusal(escrow, escrow.redeem(await voucher(40n, { signer: other }))),
      `WrongSigner(${other.address}, ${requester.address})`,
    );
    for (const over of [{ chainId: 1n }, { verifyingContract: other.address }]) {
      const said = await refusal(escrow, escrow.redeem(await voucher(40n, { over })));
      assert.match(said, /^WrongSigner\(0x[0-9a-fA-F]{40}, /);
      assert.ok(said.endsWith(`, ${requester.address})`));
    }
    const bent = { ...(await voucher(40n)), cumulative: 41n };
    assert.match(await refusal(escrow, escrow.redeem(bent)), /^WrongSigner\(/);
  });

  it("refuses a signature that is none, or has a twin", async () => {
    const { escrow, worker, voucher } = await setUp();
    await escrow.fund([[worker.address, 100n]], { value: 100n });
    const good = await voucher(30n);
    const none = { ...good, r: id(0), vs: id(0) };
    assert.equal(await refusal(escrow, escrow.redeem(none)), "ECDSAInvalidSignature()");
    const upper = `0x7f${"ff".repeat(31)}`;
    assert.equal(await refusal(escrow, escrow.redeem({ ...good, vs: upper })), `ECDSAInvalidSignatureS(${upper})`);
  });

  it("redeems vouchers of several requesters in one batch", async () => {
    const { escrow, requester, other, worker, relayer, voucher } = await setUp();
    await escrow.fund([[worker.address, 10n]], { value: 10n });
    await escrow.connect(other).fund([[worker.address, 10n]], { value: 10n });
    const batch = [
      await voucher(3n),
      await voucher(4n, { signer: other, changes: { requester: other.address } }),
    ];
    assert.deepEqual(await events(escrow, escrow.connect(relayer).redeemBatch(batch)), [
      `ChannelSettled(${requester.address}, ${worker.address}, 3, 3, 3, ${id(7)})`,
      `ChannelSettled(${other.address}, ${worker.address}, 4, 4, 4, ${id(7)})`,
    ]);
  });

  it("pays an over-signed voucher as far as the collateral goes, and the rest after a top-up", async () => {
    const { escrow, requester, worker, voucher } = await setUp();
    await escrow.fund([[worker.address, 10n]], { value: 10n });
    const debt = await voucher(25n);
    assert.deepEqual(await events(escrow, escrow.redeem(debt)), [
      `ChannelSettled(${requester.address}, ${worker.address}, 10, 10, 25, ${id(7)})`,
    ]);
    await escrow.fund([[worker.address, 100n]], { value: 100n });
    assert.deepEqual(await events(escrow, escrow.redeem(debt)), [
      `ChannelSettled(${requester.address}, ${worker.address}, 15, 25, 25, ${id(7)})`,
    ]);
  });

  it("skips what brings nothing in a batch, and reverts for a wrong signature", async () => {
    const { escrow, requester, worker, other, voucher } = await setUp();
    await escrow.fund(
      [
        [worker.address, 10n],
        [other.address, 10n],
      ],
      { value: 20n },
    );
    const spent = await voucher(5n);
    await escrow.redeem(spent);
    const fresh = await voucher(5n, { to: other });
    assert.deepEqual(await events(escrow, escrow.redeemBatch([spent, fresh])), [
      `ChannelSettled(${requester.address}, ${other.address}, 5, 5, 5, ${id(7)})`,
    ]);
    const forged = await voucher(9n, { to: other, signer: worker });
    assert.equal(
      await refusal(escrow, escrow.redeemBatch([await voucher(6n), forged])),
      `WrongSigner(${worker.address}, ${requester.address})`,
    );
  });

  it("lets a settlement and a voucher pay the same debt once", async () => {
    const { escrow, requester, worker, voucher } = await setUp();
    await escrow.fund([[worker.address, 10n]], { value: 10n });
    const promise = await voucher(8n);
    assert.deepEqual(await events(escrow, escrow.settleBatch([[worker.address, 8n, id(7)]])), [
      `ChannelSettled(${requester.address}, ${worker.address}, 8, 8, 8, ${id(7)})`,
    ]);
    assert.equal(await refusal(escrow, escrow.redeem(promise)), `NothingDue(${requester.address}, ${worker.address})`);
    assert.deepEqual(await events(escrow, escrow.settleBatch([[worker.address, 8n, id(7)]])), []);
  });

  it("returns collateral only after the delay, and lets a top-up call an exit off", async () => {
    const { escrow, requester, worker, other, now, warpTo, provider } = await setUp();
    await escrow.fund([[worker.address, 10n]], { value: 10n });
    assert.equal(await refusal(escrow, escrow.finishExit([worker.address])), `ExitNotReady(${worker.address}, 0)`);
    await provider.request({ method: "evm_setNextBlockTimestamp", params: [Number((await now()) + 100n)] });
    const said = await events(escrow, escrow.startExit([worker.address, other.address]));
    const exitAt = (await now()) + DELAY;
    assert.deepEqual(said, [`ExitStarted(${requester.address}, ${worker.address}, ${exitAt})`]);
    assert.deepEqual(await events(escrow, escrow.startExit([worker.address])), []);
    assert.equal(await refusal(escrow, escrow.finishExit([worker.address])), `ExitNotReady(${worker.address}, ${exitAt})`);
    await escrow.fund([[worker.address, 1n]], { value: 1n });
    await warpTo(exitAt + 1n);
    assert.equal(await refusal(escrow, escrow.finishExit([worker.address])), `ExitNotReady(${worker.address}, 0)`);
    await escrow.startExit([worker.address]);
    await warpTo((await now()) + DELAY);
    assert.deepEqual(await events(escrow, escrow.finishExit([worker.address, other.address])), [
      `ChannelClosed(${requester.address}, ${worker.address}, 11)`,
    ]);
    assert.equal(await escrow.balanceOf(requester.address), 11n);
  });

  it("lets the worker give the collateral back at once", async () => {
    const { escrow, requester, worker } = await setUp();
    const mine = escrow.connect(worker);
    assert.equal(
      await refusal(escrow, mine.release(requester.address)),
      `NothingLocked(${requester.address}, ${worker.address})`,
    );
    await escrow.fund([[worker.address, 10n]], { value: 10n });
    assert.deepEqual(await events(escrow, mine.release(requester.address)), [
      `ChannelClosed(${requester.address}, ${worker.address}, 10)`,
    ]);
    assert.equal(await escrow.balanceOf(requester.address), 10n);
  });

  it("says its domain and digest as EIP-712 has them", async () => {
    const { ethers, escrow, address, requester, worker } = await setUp();
    const [, name, version, chainId, verifying] = await escrow.eip712Domain();
    assert.deepEqual([name, version, verifying], ["TaskEscrow", "1", address]);
    const value = { requester: requester.address, worker: worker.address, cumulative: 5n, tasksRoot: id(7) };
    const types = {
      Voucher: [
        { name: "requester", type: "address" },
        { name: "worker", type: "address" },
        { name: "cumulative", type: "uint96" },
        { name: "tasksRoot", type: "bytes32" },
      ],
    };
    assert.equal(
      await escrow.voucherDigest(requester.address, worker.address, 5n, id(7)),
      ethers.TypedDataEncoder.hash({ name, version, chainId, verifyingContract: address }, types, value),
    );
  });
});

describe("the record", () => {
  it("lets anyone rebuild balances, tasks and channels from the events alone", async () => {
    const { ethers, escrow, address, requester, worker, other, now, warpTo, voucher } = await setUp();
    const rejecting = await (await ethers.deployContract("RejectingWorker")).getAddress();
    const deadline = (await now()) + HOUR;
    await escrow.deposit({ value: 100n });
    await escrow.create(id(1), 10n, deadline, { value: 4n });
    await escrow.createBatch([2, 3, 4, 5].map(id), 5n, deadline, { value: 20n });
    await escrow.completeBatch([
      [id(1), worker.address, OUTPUT, true],
      [id(2), NOBODY, OUTPUT, false],
      [id(3), rejecting, OUTPUT, true],
    ]);
    const fundings = [worker.address, rejecting, other.address].map((who) => [who, 20n]);
    await escrow.fund(fundings, { value: 30n });
    await escrow.redeem(await voucher(30n));
    await escrow.settleBatch([[rejecting, 7n, id(7)]]);
    await escrow.startExit([rejecting, other.address]);
    await escrow.connect(other).release(requester.address);
    await warpTo(deadline + DELAY);
    await escrow.finishExit([rejecting]);
    await escrow.refund([id(4)]);
    await escrow.withdraw(other.address, 11n);
    await escrow.fund([[worker.address, 9n]]);
    await escrow.startExit([worker.address]);

    const { balances, tasks, channels } = await rebuild(escrow);
    for (const [account, balance] of balances) assert.equal(await escrow.balanceOf(account), balance, account);
    assert.deepEqual([...balances.keys()].sort(), [requester.address, rejecting].sort());
    for (const [task, facts] of tasks) assert.deepEqual([...(await escrow.taskOf(requester.address, task))], facts);
    assert.equal(tasks.size, 5);
    for (const [to, facts] of channels) assert.deepEqual([...(await escrow.channelOf(requester.address, to))], facts);
    assert.equal(channels.size, 3);
    const open = [...tasks.values()].filter(([, , state]) => state === OPEN).reduce((sum, [reward]) => sum + reward, 0n);
    const locked = [...channels.values()].reduce((sum, [amount]) => sum + amount, 0n);
    const free = [...balances.values()].reduce((sum, amount) => sum + amount, 0n);
    assert.equal(await ethers.provider.getBalance(address), free + open + locked);
  });

  it("has said each error and each event of the contract in these tests", async () => {
    const { escrow } = await setUp();
    const declared = escrow.interface.fragments.filter(({ type }) => type === "error" || type === "event");
    const unsaid = declared.map(({ name }) => name).filter((name) => !seen.has(name) && !UNREACHABLE.has(name));
    assert.deepEqual(unsaid, []);
  });
});

/** OpenZeppelin's, for what this contract doesn't do. */
const UNREACHABLE = new Set([
  "ECDSAInvalidSignatureLength", // compact signatures have a type of their own
  "EIP712DomainChanged", // the domain is fixed
  "InvalidShortString", // name and version are constants
  "StringTooLong",
  "ReentrancyGuardReentrantCall", // said to payees, whose calls the tests count
]);
const [OPEN, PAID, FAILED, REFUNDED] = [1n, 2n, 3n, 4n];

/** What the contract holds for one requester, by nothing but its events. */
async function rebuild(escrow) {
  const [balances, tasks, channels] = [new Map(), new Map(), new Map()];
  const credit = (account, amount) => balances.set(account, (balances.get(account) ?? 0n) + amount);
  const channel = (worker, change) => channels.set(worker, change(...(channels.get(worker) ?? [0n, 0n, 0n])));
  const close = (task, state) => tasks.set(task, [...tasks.get(task).slice(0, 2), state]);
  const steps = {
    Deposited: (account, amount) => credit(account, amount),
    Withdrawn: (account, to, amount) => credit(account, -amount),
    PushFailed: (account, amount) => credit(account, amount),
    TaskCreated: (requester, task, reward, deadline) => {
      credit(requester, -reward);
      tasks.set(task, [reward, deadline, OPEN]);
    },
    TaskCompleted: (requester, task) => close(task, PAID),
    TaskFailed: (requester, task, assignee, refunded) => {
      credit(requester, refunded);
      close(task, FAILED);
    },
    TaskRefunded: (requester, task, refunded) => {
      credit(requester, refunded);
      close(task, REFUNDED);
    },
    ChannelFunded: (requester, worker, amount) => {
      credit(requester, -amount);
      channel(worker, (locked, settled) => [locked + amount, settled, 0n]);
    },
    ChannelSettled: (requester, worker, paid, settled) =>
      channel(worker, (locked, before, exitAt) => [locked - paid, settled, exitAt]),
    ExitStarted: (requester, worker, exitAt) => channel(worker, (locked, settled) => [locked, settled, exitAt]),
    ChannelClosed: (requester, worker, returned) => {
      credit(requester, returned);
      channel(worker, (locked, settled) => [0n, settled, 0n]);
    },
  };
  for (const { fragment, args } of await escrow.queryFilter("*")) steps[fragment.name](...args);
  return { balances, tasks, channels };
}

async function deploying(factory, delay) {
  return (await factory.deploy(delay)).deploymentTransaction();
}
