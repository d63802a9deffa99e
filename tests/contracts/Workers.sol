// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {ITaskEscrow} from "../../contracts/ITaskEscrow.sol";

/// @dev A payee that takes no ether.
contract RejectingWorker {
    function takeCredit(ITaskEscrow escrow, address to, uint256 amount) external {
        escrow.withdraw(to, amount);
    }
}

/// @dev A payee that burns all the gas it is given.
contract GasBurningWorker {
    receive() external payable {
        while (true) {}
    }
}

/// @dev A payee that is paid, and while it is calls back into each function that changes state. Takes the money.
contract ReenteringWorker {
    /// @dev Zeros, as many as the longest arguments: valid for each function, an array of them being empty.
    uint256 private constant ARGUMENT_BYTES = 6 * 32;

    ITaskEscrow private immutable _escrow;
    uint256 public reentries;

    constructor(ITaskEscrow escrow) {
        _escrow = escrow;
    }

    receive() external payable {
        _call(ITaskEscrow.deposit.selector);
        _call(ITaskEscrow.withdraw.selector);
        _call(ITaskEscrow.create.selector);
        _call(ITaskEscrow.createBatch.selector);
        _call(ITaskEscrow.complete.selector);
        _call(ITaskEscrow.completeBatch.selector);
        _call(ITaskEscrow.refund.selector);
        _call(ITaskEscrow.fund.selector);
        _call(ITaskEscrow.redeem.selector);
        _call(ITaskEscrow.redeemBatch.selector);
        _call(ITaskEscrow.settleBatch.selector);
        _call(ITaskEscrow.startExit.selector);
        _call(ITaskEscrow.finishExit.selector);
        _call(ITaskEscrow.release.selector);
    }

    /// @dev Counts it where the call got past the guard, be it refused for another reason.
    function _call(bytes4 selector) private {
        (bool done, bytes memory why) = address(_escrow).call(abi.encodePacked(selector, new bytes(ARGUMENT_BYTES)));
        if (done || bytes4(why) != ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector) reentries += 1;
    }
}

/// @dev A payee that needs as much gas as it is told, so that a relayer could try to starve it.
contract HungryWorker {
    uint256 private _gasNeeded;

    function need(uint256 gasNeeded) external {
        _gasNeeded = gasNeeded;
    }

    receive() external payable {
        uint256 start = gasleft();
        while (start - gasleft() < _gasNeeded) {}
    }
}
