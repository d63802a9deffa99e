// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ITaskEscrow} from "../../contracts/ITaskEscrow.sol";
import {TaskEscrow} from "../../contracts/TaskEscrow.sol";
import {vm} from "./Vm.sol";

/// @dev I4: a voucher that a worker accepted by its rule is redeemable in full until EXIT_DELAY later, whatever the
/// requester does meanwhile. And the edges of an exit.
contract GuaranteeTest {
    uint40 private constant DELAY = 1 hours;
    uint256 private constant KEY = 0xA11CE;

    TaskEscrow private _escrow;
    address private _requester;
    address private _worker;

    function setUp() public {
        _escrow = new TaskEscrow(DELAY);
        _requester = vm.addr(KEY);
        _worker = vm.addr(0xD00D);
        vm.deal(_requester, 1e30);
    }

    function testFuzz_I4_an_accepted_voucher_is_paid_in_full(
        uint64 locked,
        uint64 settledBefore,
        uint64 amount,
        uint8[16] calldata deeds,
        uint16[16] calldata waits
    ) public {
        _fund(uint96(locked) + uint96(settledBefore) + 2);
        _settle(uint96(settledBefore) + 1);
        ITaskEscrow.Channel memory channel = _escrow.channelOf(_requester, _worker);
        uint96 cumulative = channel.settled + 1 + uint96(amount) % (channel.locked);

        // the worker's rule: no exit under way, and covered
        require(channel.exitAt == 0 && cumulative <= uint256(channel.settled) + channel.locked, "rule");
        ITaskEscrow.Voucher memory voucher = _voucher(cumulative);
        uint256 acceptedAt = block.timestamp;
        uint256 owed = cumulative - channel.settled;
        uint256 held = _worker.balance;

        for (uint256 i = 0; i < 16; ++i) {
            _deed(deeds[i]);
            if (block.timestamp + waits[i] % 600 < acceptedAt + DELAY) vm.warp(block.timestamp + waits[i] % 600);
        }
        // the last moment at which it must still be good
        vm.warp(acceptedAt + DELAY - 1);
        _deed(3);
        uint96 settledNow = _escrow.channelOf(_requester, _worker).settled;
        if (settledNow < cumulative) _escrow.redeem(voucher);
        require(_worker.balance - held >= owed, "I4: the worker got less than its voucher promised");
    }

    function test_an_exit_before_its_time_is_refused_with_the_time() public {
        _fund(10);
        vm.prank(_requester);
        _escrow.startExit(_one());
        uint40 exitAt = uint40(block.timestamp) + DELAY;
        vm.warp(exitAt - 1);
        vm.prank(_requester);
        vm.expectRevert(abi.encodeWithSelector(ITaskEscrow.ExitNotReady.selector, _worker, exitAt));
        _escrow.finishExit(_one());
        vm.warp(exitAt);
        vm.prank(_requester);
        _escrow.finishExit(_one());
        require(_escrow.balanceOf(_requester) == 10, "the collateral came back");
    }

    function test_an_old_voucher_pays_nothing_after_close_and_refund() public {
        _fund(10);
        ITaskEscrow.Voucher memory voucher = _voucher(10);
        _escrow.redeem(voucher);
        _fund(10);
        vm.expectRevert(abi.encodeWithSelector(ITaskEscrow.NothingDue.selector, _requester, _worker));
        _escrow.redeem(voucher);
    }

    function test_a_debt_stays_a_debt_until_it_is_topped_up() public {
        _fund(10);
        ITaskEscrow.Voucher memory voucher = _voucher(25);
        _escrow.redeem(voucher);
        require(_worker.balance == 10, "pays what is locked");
        _fund(100);
        _escrow.redeem(voucher);
        require(_worker.balance == 25, "pays the rest after a top-up");
    }

    /// @dev What a requester might try: redeem in advance, settle, exit, finish, add.
    function _deed(uint8 deed) private {
        uint8 kind = deed % 6;
        if (kind == 0) {
            vm.prank(_requester);
            _escrow.startExit(_one());
        } else if (kind == 1) {
            vm.prank(_requester);
            (bool done,) = address(_escrow).call(abi.encodeCall(ITaskEscrow.finishExit, (_one())));
            done;
        } else if (kind == 2) {
            _settle(_escrow.channelOf(_requester, _worker).settled + uint96(deed));
        } else if (kind == 3) {
            vm.prank(_requester);
            (bool done,) = address(_escrow).call(abi.encodeCall(ITaskEscrow.finishExit, (_one())));
            done;
        } else if (kind == 4) {
            _fund(uint96(deed) + 1);
        } else {
            uint256 balance = _escrow.balanceOf(_requester);
            if (balance != 0) {
                vm.prank(_requester);
                _escrow.withdraw(address(0xFEE), balance);
            }
        }
    }

    function _fund(uint96 amount) private {
        ITaskEscrow.Funding[] memory items = new ITaskEscrow.Funding[](1);
        items[0] = ITaskEscrow.Funding(_worker, amount);
        vm.prank(_requester);
        _escrow.fund{value: amount}(items);
    }

    function _settle(uint96 cumulative) private {
        ITaskEscrow.Settlement[] memory items = new ITaskEscrow.Settlement[](1);
        items[0] = ITaskEscrow.Settlement(_worker, cumulative, 0);
        vm.prank(_requester);
        _escrow.settleBatch(items);
    }

    function _voucher(uint96 cumulative) private view returns (ITaskEscrow.Voucher memory voucher) {
        voucher = ITaskEscrow.Voucher(_requester, _worker, cumulative, 0, 0, 0);
        (uint8 v, bytes32 r, bytes32 s) =
            vm.sign(KEY, _escrow.voucherDigest(_requester, _worker, cumulative, 0));
        voucher.r = r;
        voucher.vs = bytes32(uint256(s) | (uint256(v - 27) << 255));
    }

    function _one() private view returns (address[] memory list) {
        list = new address[](1);
        list[0] = _worker;
    }
}
