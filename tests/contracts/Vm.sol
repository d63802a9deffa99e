// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The cheat codes that these tests use, as Hardhat's Solidity runner answers them.
interface Vm {
    function warp(uint256 timestamp) external;
    function prank(address sender) external;
    function deal(address account, uint256 balance) external;
    function addr(uint256 privateKey) external pure returns (address);
    function sign(uint256 privateKey, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function expectRevert(bytes calldata revertData) external;
    function assume(bool condition) external pure;
}

Vm constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);
