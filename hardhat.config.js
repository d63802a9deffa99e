import { fileURLToPath } from "node:url";

export default {
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
};
