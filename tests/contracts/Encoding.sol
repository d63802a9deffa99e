// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev What the contract takes as it comes, encoded as Solidity encodes it: ids of tasks and the chain over them; and
/// the hashes of receipts, which a contract of others may want to check.
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

    function completionDigest(
        string calldata network,
        bytes16 task,
        uint256 generation,
        bytes32 result,
        uint64 fence,
        address worker,
        address payout
    ) external pure returns (bytes32) {
        bytes32 typeHash = keccak256(
            "Completion(string network,bytes16 task,uint256 generation,bytes32 result,uint64 fence,address worker,address payout)"
        );
        bytes32 domain = keccak256(
            abi.encode(keccak256("EIP712Domain(string name,string version)"), keccak256("task-swarm"), keccak256("1"))
        );
        bytes32 hash = keccak256(
            abi.encode(typeHash, keccak256(bytes(network)), task, generation, result, fence, worker, payout)
        );
        return keccak256(abi.encodePacked(hex"1901", domain, hash));
    }

    function acceptanceDigest(bytes32 completion, uint256 reward, uint64 acceptedAt, uint256 chainId, address escrow)
        external
        pure
        returns (bytes32)
    {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("task-swarm"),
                keccak256("1"),
                chainId,
                escrow
            )
        );
        bytes32 typeHash = keccak256("Acceptance(bytes32 completion,uint256 reward,uint64 acceptedAt)");
        bytes32 hash = keccak256(abi.encode(typeHash, completion, reward, acceptedAt));
        return keccak256(abi.encodePacked(hex"1901", domain, hash));
    }
}
