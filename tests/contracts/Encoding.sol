// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev What the contract takes as it comes, encoded as Solidity encodes it: ids of tasks and the chain over them.
contract Encoding {
    function chainTaskId(bytes16 task, uint256 generation) external pure returns (bytes32) {
        return keccak256(abi.encode(task, generation));
    }

    function nextTasksRoot(bytes32 root, bytes32 chainTask, bytes32 output, uint256 reward)
        external
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(root, chainTask, output, reward));
    }
}
