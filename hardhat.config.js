import { fileURLToPath } from "node:url";

import ethers from "@nomicfoundation/hardhat-ethers";
import nodeTestRunner from "@nomicfoundation/hardhat-node-test-runner";

// OpenZeppelin's transient guard makes solc note, once for each file, that transient storage exists: no fault of ours.
const THIRD_PARTY_NOTE = { errorCode: "2394", file: /^npm\/@openzeppelin\// };

/** Makes each warning of the compiler an error. */
const warningsAreErrors = {
  id: "warnings-are-errors",
  hookHandlers: {
    solidity: async () => ({
      default: async () => ({
        async invokeSolc(context, compiler, input, config, next) {
          const output = await next(context, compiler, input, config);
          const errors = (output.errors ?? []).filter(
            (fault) =>
              fault.errorCode !== THIRD_PARTY_NOTE.errorCode || !THIRD_PARTY_NOTE.file.test(fault.sourceLocation?.file),
          );
          return { ...output, errors: errors.map((fault) => ({ ...fault, severity: "error" })) };
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
