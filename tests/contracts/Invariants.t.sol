// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {TaskEscrow} from "../../contracts/TaskEscrow.sol";
import {Handler} from "./Handler.sol";
import {ReenteringWorker} from "./Workers.sol";

/// @dev What holds after any sequence of calls:
/// I1 the ether held is what is owed; I2 none appears or vanishes; I3 a channel pays up to what was signed, once;
/// I5 a task leaves `Open` once; I6 nobody loses by what another does, but collateral by an exit after its delay.
/// I4, that an accepted voucher is paid, has tests of its own.
contract InvariantsTest {
    Handler private _handler;
    TaskEscrow private _escrow;

    function setUp() public {
        _handler = new Handler(false);
        _escrow = _handler.escrow();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(_handler);
    }

    function invariant_I1_holds_exactly_what_it_owes() public view {
        require(address(_escrow).balance == _handler.owed(), "I1: ether held differs from what is owed");
    }

    function invariant_I2_what_came_in_less_what_went_out_is_there() public view {
        require(address(_escrow).balance == _handler.ethIn() - _handler.ethOut(), "I2: ether appeared or vanished");
    }

    function invariant_I3_a_channel_pays_up_to_what_was_signed_and_once() public view {
        require(!_handler.settledFell(), "I3: settled fell");
        for (uint256 i = 0; i < 3; ++i) {
            address requester = _handler.requesters(i);
            for (uint256 j = 0; j < 5; ++j) {
                address worker = _handler.workers(j);
                uint256 settled = _escrow.channelOf(requester, worker).settled;
                require(settled <= _handler.signed(requester, worker), "I3: settled more than was signed");
                if (requester == worker) continue;  // its credit moves for other reasons too
                require(settled == _handler.paid(requester, worker), "I3: settled differs from what was paid");
            }
        }
    }

    function invariant_I5_a_task_leaves_open_once() public view {
        require(!_handler.paidMoreThanOnce(), "I5: a completion paid another amount than the reward");
        for (uint256 i = 0; i < _handler.idCount(); ++i) {
            (uint256 closings, bool open) = _handler.closingsAt(i);
            require(closings == (open ? 0 : 1), "I5: a task was closed twice, or never");
        }
    }

    /// @dev Counting a call that got in takes more gas than a payee has: then it isn't paid, but credited.
    function invariant_nobody_enters_twice() public view {
        ReenteringWorker worker = ReenteringWorker(payable(_handler.workers(3)));
        require(worker.reentries() == 0 && _escrow.balanceOf(address(worker)) == 0, "a payee called back in");
    }
}

contract RightsInvariantTest {
    Handler private _handler;

    function setUp() public {
        _handler = new Handler(true);
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(_handler);
    }

    function invariant_I6_nobody_loses_by_what_another_does() public view {
        require(!_handler.lost(), "I6: a call by another made an account poorer");
    }
}
