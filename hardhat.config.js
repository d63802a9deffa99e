import { fileURLToPath } from "node:url";

import ethers from "@nomicfoundation/hardhat-ethers";
import nodeTestRunner from "@nomicfoundation/hardhat-node-test-runner";

/** The only warnings that are let pass: [code, where]. */
const LET_PASS = [
  // OpenZeppelin's transient guard makes solc note that transient storage exists.
  ["2394", /^npm\/@openzeppelin\//],
  // A contract of the tests is larger than a chain would take: it holds the escrow's code too.
  ["5574", /^project\/tests\//],
  // Hardhat's own library that counts what is covered.
  ["2424", /^__NomicFoundationCoverage-/],
];

/** Makes each other warning of the compiler an error. */
const warningsAreErrors = {
  id: "warnings-are-errors",
  hookHandlers: {
    solidity: async () => ({
      default: async () => ({
        async invokeSolc(context, compiler, input, config, next) {
          const output = await next(context, compiler, input, config);
          const passes = (fault) =>
            LET_PASS.some(([code, where]) => fault.errorCode === code && where.test(fault.sourceLocation?.file));
          const errors = (output.errors ?? []).filter((fault) => !passes(fault));
          return { ...output, errors: errors.map((fault) => ({ ...fault, type: "Error", severity: "error" })) };
        },
      }),
    }),
  },
};

export default {
  plugins: [ethers, nodeTestRunner, warningsAreErrors],
  solidity: {
    version: "0.8.37",
    // The compiler from npm: Hardhat would download one of its own.
    path: fileURLToPath(import.meta.resolve("solc/soljson.js")),
    settings: {
      // Runs on the Hardhat node (osaka) and on py-evm (prague) alike.
      evmVersion: "prague",
      optimizer: { enabled: true, runs: 200 },
    },
  },
  paths: { tests: { solidity: "./tests/contracts", nodejs: "./tests/contracts" } },
  test: {
    solidity: {
      // The seed is Hardhat's fixed one, so that a run can be repeated; another can be tried with FUZZ_SEED.
      fuzz: { runs: 256, ...(process.env.FUZZ_SEED && { seed: process.env.FUZZ_SEED }) },
      invariant: { runs: 64, depth: 100, failOnRevert: true },
    },
  },
};
