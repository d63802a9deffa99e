/** What the tests of the contract share: a chain of their own, an escrow, its people, and the decoding of what it says. */
import { network } from "hardhat";

export const DELAY = 3600n;
export const HOUR = 3600n;

/** The names of all errors and events that were decoded so far. */
export const seen = new Set();

export async function setUp() {
  const { ethers, provider } = await network.create();
  const [requester, worker, other, relayer] = await ethers.getSigners();
  const escrow = await ethers.deployContract("TaskEscrow", [DELAY]);
  const address = await escrow.getAddress();
  const now = async () => BigInt((await ethers.provider.getBlock("latest")).timestamp);
  const warpTo = async (time) => {
    await provider.request({ method: "evm_setNextBlockTimestamp", params: [Number(time)] });
    await provider.request({ method: "evm_mine", params: [] });
  };

  const domain = {
    name: "TaskEscrow",
    version: "1",
    chainId: (await ethers.provider.getNetwork()).chainId,
    verifyingContract: address,
  };
  const types = {
    Voucher: [
      { name: "requester", type: "address" },
      { name: "worker", type: "address" },
      { name: "cumulative", type: "uint96" },
      { name: "tasksRoot", type: "bytes32" },
    ],
  };
  /** A signed voucher; `over` changes the domain, `changes` what is signed. */
  async function voucher(cumulative, { signer = requester, to = worker, changes = {}, over = {} } = {}) {
    const value = { requester: requester.address, worker: to.address ?? to, cumulative, tasksRoot: id(7), ...changes };
    const signature = ethers.Signature.from(await signer.signTypedData({ ...domain, ...over }, types, value));
    return { ...value, r: signature.r, vs: signature.yParityAndS };
  }
  return { ethers, provider, escrow, address, requester, worker, other, relayer, now, warpTo, voucher };
}

export const id = (number) => "0x" + BigInt(number).toString(16).padStart(64, "0");

/** The custom error that a call was refused with, as `Name(arguments)`; fails where it wasn't refused. */
export async function refusal(contract, call) {
  try {
    await (await call).wait();
  } catch (fault) {
    const data = fault.data ?? fault.error?.data ?? fault.info?.error?.data?.data ?? fault.info?.error?.data;
    const parsed = data && contract.interface.parseError(typeof data === "string" ? data : data.data);
    if (!parsed) throw fault;
    return sentence(parsed);
  }
  throw new Error("it was not refused");
}

/** The escrow's events of a transaction, each as `Name(arguments)`. */
export async function events(contract, call) {
  const receipt = await (await call).wait();
  return receipt.logs
    .map((log) => contract.interface.parseLog(log))
    .filter(Boolean)
    .map(sentence);
}

function sentence({ name, args }) {
  seen.add(name);
  return `${name}(${args.map(String).join(", ")})`;
}
